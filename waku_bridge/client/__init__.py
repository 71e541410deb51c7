"""Reference clients of a push server: a phone that registers, and a phone that notifies others.

`RegisteringClient` and `SendingClient` are cores without I/O. Their inputs are the user's requests (methods of their
own), messages (``receive``) and time (``tick``). ``receive`` and ``tick`` return a `Step`: messages to publish, and
events that happened. Keys and randomness are arguments. `Session` does all of this at a Waku node.

    from waku_bridge.client.registering import RegisteringClient
    from waku_bridge.client.sending import SendingClient
    from waku_bridge.client.session import Session
    from waku_bridge.client.state import Address, Kept, new_state, write

    session = Session(WakuNode(url, http_client))

    client = RegisteringClient(identity, new_state(server_key, random_bytes=os.urandom), os.urandom)
    client.change(Address(TokenType.FIREBASE, device_token))
    await session.register(client)                      # all servers, then the contact code
    write(path, Kept(identity, client.state))           # and read(path) after a restart

    sender = SendingClient(identity, os.urandom)
    destinations = await session.look_up(sender, client_key)
    result = await session.notify(sender, client_key, sender.one_to_one(), status_message_id)

    await session.drive(client, lambda: False, timeout_seconds=inf)     # retries, periodic contact codes

Public keys are compressed (33 bytes) everywhere, key hashes and chat hashes have 64 bytes, and Status message ids 32.
Times in the cores are Unix nanoseconds. No message of a peer raises an exception: an `Ignored` event has the reason why
it was not accepted. All events are in `events`.

See docs/conformance.md.
"""
