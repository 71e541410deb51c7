"""Reference clients of a push server: a phone that registers, and a phone that notifies others.

`RegisteringClient` and `SendingClient` are cores without I/O. Their inputs are the user's requests (methods of their
own), messages (``receive``) and time (``tick``). ``receive`` and ``tick`` return a `Step`: messages to publish, and
events that happened. Keys and randomness are arguments. `Session` publishes and reads their messages at a Waku node.

    node = WakuNode(url, http_client)
    session = Session(node)

    client = RegisteringClient(identity, new_state(server_key, random_bytes=os.urandom), os.urandom)
    client.change(Address(TokenType.FIREBASE, device_token))
    await session.register(client)                      # all servers, then the contact code
    keep(dump_state(client.state))                      # and load_state(...) after a restart

    sender = SendingClient(identity, os.urandom)
    destinations = await session.look_up(sender, client_key)
    result = await session.notify(sender, client_key, sender.one_to_one(), status_message_id)

    async for event in session.events(client): ...      # never ends: retries, periodic contact codes

For single messages without a client (load, tests of servers): `ask_to_push` builds a request, and `verify_info`
verifies one entry of an answer to a query.

Public keys are compressed (33 bytes) everywhere, key hashes and chat hashes have 64 bytes, and Status message ids 32.
Times in the cores are Unix nanoseconds. No message of a peer raises an exception: an `Ignored` event has the reason why
it was not accepted. All events are in `events`.

See docs/conformance.md.
"""

from waku_bridge.client.core import Core, Schedule, new_identity
from waku_bridge.client.directory import verify_info
from waku_bridge.client.events import Destination, Event, Notified, Outcome, Refused
from waku_bridge.client.notices import Content, ask_to_push, one_to_one
from waku_bridge.client.reading import StoreReader
from waku_bridge.client.registering import RegisteringClient
from waku_bridge.client.sending import SendingClient, Timeouts
from waku_bridge.client.session import NoAnswer, RegistrationRefused, Session, SessionError
from waku_bridge.client.state import Address, Preferences, Standing, android, dump_state, iphone, load_state, new_state

__all__ = [
    "Address",
    "Content",
    "Core",
    "Destination",
    "Event",
    "NoAnswer",
    "Notified",
    "Outcome",
    "Preferences",
    "Refused",
    "RegisteringClient",
    "RegistrationRefused",
    "Schedule",
    "SendingClient",
    "Session",
    "SessionError",
    "Standing",
    "StoreReader",
    "Timeouts",
    "android",
    "ask_to_push",
    "dump_state",
    "iphone",
    "load_state",
    "new_identity",
    "new_state",
    "one_to_one",
    "verify_info",
]
