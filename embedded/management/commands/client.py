"""`manage.py client`: carry out one step of the protocol, and show the messages that are sent and received."""

import asyncio
import math
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from kit.http import Connections
from registrations.messages import TokenType
from waku_bridge.client.core import Core, new_identity
from waku_bridge.client.events import Accepted, Advertised, Event, GivenUp, Ignored, Learned, Reason, Refused
from waku_bridge.client.registering import RegisteringClient
from waku_bridge.client.sending import SendingClient
from waku_bridge.client.session import NoAnswer, RegistrationRefused, Session
from waku_bridge.client.state import (
    Address,
    KeepingError,
    Kept,
    Preferences,
    android,
    iphone,
    new_state,
    read,
    write,
)
from waku_bridge.codec.errors import CodecError
from waku_bridge.codec.keys import chat_hash, chat_key, parse_chat_key
from waku_bridge.dialect import NodeError
from waku_bridge.node import WakuNode
from waku_bridge.query_topics import server_identity

TIMEOUT_SECONDS = 10.0
POLL_SECONDS = 0.1
NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
KEY_DIGITS = 12
# Messages on shared topics are often ignored for these reasons, so they get no line.
UNREMARKABLE = frozenset({Reason.NOT_FOR_US, Reason.DUPLICATE, Reason.FOREIGN_TOPIC})


class Command(BaseCommand):
    help = "Act as a client: register, query where somebody can be notified, notify, unregister, and watch."

    def add_arguments(self, parser: CommandParser) -> None:
        steps = parser.add_subparsers(dest="step", required=True, metavar="step")
        register = _step(steps, "register", "register the device token of this client's phone with the server")
        register.add_argument("--token", default="", help="the device token (default: a random one)")
        register.add_argument("--iphone", default="", metavar="APP", help="the phone is an iPhone with this app topic")
        register.add_argument("--only", default="", metavar="WHO,WHO", help="only these contacts may notify it")
        query = _step(steps, "query", "query all servers for the phones of a client")
        query.add_argument("who", help="a name used with --as, or a chat key")
        notify = _step(steps, "notify", "notify the phones of a client")
        notify.add_argument("who", help="a name used with --as, or a chat key")
        notify.add_argument("--text", default="Hello", help="the text that the phone would show")
        notify.add_argument("--mention", default="", metavar="CHAT", help="a mention in this chat, not a message")
        _step(steps, "unregister", "unregister this client from the server")
        watch = _step(steps, "watch", "show messages to this client, and contact codes of others, until Ctrl-C")
        watch.add_argument("who", nargs="*", help="clients whose contact codes are shown")
        watch.add_argument("--seconds", type=float, default=0.0, help="end after this time (0: until Ctrl-C)")

    def handle(self, *_args: Any, **options: Any) -> None:
        try:
            client = _Client(options, self.stdout.write)
            with suppress(KeyboardInterrupt):
                asyncio.run(client.take(options["step"]))
        except RegistrationRefused as refused:
            raise CommandError(f"Refused: {refused}.") from None
        except NoAnswer as silence:
            raise CommandError(f"{str(silence).capitalize()}. {_hint(options)}") from None
        except NodeError as error:
            raise CommandError(f"The node does not work: {error}. Is `manage.py up` running?") from None
        except KeepingError as error:
            raise CommandError(f"{error}.") from None


def _step(steps: Any, name: str, text: str) -> CommandParser:
    step: CommandParser = steps.add_parser(name, help=text, description=text)
    step.add_argument("--as", dest="name", default="me", help="the name of the client (default: me)")
    step.add_argument("--state", default="", metavar="FILE", help="its file (default: DATA_DIR/clients/NAME.json)")
    step.add_argument("--node", default="", help="REST URL of a Waku node (default: the first of WAKU_NODES)")
    step.add_argument("--server", default="", help="public key of the push server (default: this server's)")
    return step


def _hint(options: dict[str, Any]) -> str:
    if options["step"] == "query":
        return "A server does not answer about a client that is not registered with it."
    return "`manage.py canary` shows what is broken."


class _Client:
    """The client of the command. Its state is saved to a file after every event, so that no version is used twice."""

    def __init__(self, options: dict[str, Any], write_line: Callable[[str], object]) -> None:
        self._options = options
        self._name = str(options["name"])
        self._write_line = write_line
        self._path = _path(self._name, options["state"])
        self._node_url = options["node"] or next(iter(settings.WAKU_NODES), "")
        if not self._node_url:
            raise CommandError("There is no node: give --node, or start `manage.py up`.")
        self._server = _key(options["server"]) if options["server"] else server_identity().pub33
        kept = read(self._path) if self._path.exists() else _new_client()
        self._phone = RegisteringClient(kept.identity, kept.state, os.urandom)
        # A sender with the same key, which its contacts know.
        self._sender = SendingClient(kept.identity, os.urandom)
        self._started = time.monotonic()

    async def take(self, step: str) -> None:
        """Carry out one step, on a new connection to the node."""
        steps = {
            "register": self._register,
            "query": self._query,
            "notify": self._notify,
            "unregister": self._unregister,
            "watch": self._watch,
        }
        async with Connections(silent_seconds=TIMEOUT_SECONDS) as http:
            topic, node = settings.WAKU_PUBSUB_TOPICS[0], WakuNode(self._node_url, http)
            self._keep()
            await steps[step](Session(node, pubsub_topic=topic, poll_seconds=POLL_SECONDS, on_event=self._note))

    async def _register(self, session: Session) -> None:
        self._phone.use([self._server])
        contacts = tuple(self._somebody(who) for who in self._options["only"].split(",") if who)
        self._phone.change(self._address(), Preferences(contacts_only=bool(contacts), contacts=contacts))
        self._print(f"{self._name} is {chat_key(self._phone.identity.pub33)}")
        await self._send_version(session, f"registration for {short(self._server)} alone to read")
        self._print(f"Kept in {self._path}")

    async def _unregister(self, session: Session) -> None:
        if not self._phone.version:
            raise CommandError(f"{self._name} has never registered.")
        self._phone.use([self._server])
        self._phone.unregister()
        await self._send_version(session, "unregistering")

    async def _send_version(self, session: Session, what: str) -> None:
        self._keep()
        self._print(f"→ {what}, version {self._phone.version}")
        try:
            await session.register(self._phone, timeout_seconds=TIMEOUT_SECONDS)
        finally:
            self._keep()

    async def _query(self, session: Session) -> None:
        client = self._somebody(self._options["who"])
        self._print(f"→ query for the key hash of {short(client)}, signed by a key used for nothing else")
        found = await session.look_up(self._sender, client, timeout_seconds=TIMEOUT_SECONDS)
        if not found:
            self._print("The answer is for contacts only, and this client is none.")
        for each in found:
            self._print(f"Can be notified at {each.installation_id} by {short(each.server)}, version {each.version}")

    async def _notify(self, session: Session) -> None:
        sender, client = self._sender, self._somebody(self._options["who"])
        text, chat = self._options["text"].encode(), self._options["mention"]
        content = sender.mention(chat_hash(chat), text) if chat else sender.one_to_one(text)
        self._print(f"→ query for {short(client)}, then a request to its server")
        result = await session.notify(sender, client, content, os.urandom(32))
        for settled in result.installations:
            self._print(f"← {settled.installation_id}: {settled.outcome.replace('_', ' ')}")
        if not result.installations and sender.answer_count(client):
            raise CommandError("No phone was notified: the answers had nothing for this client. Is it a contact?")
        if not result.is_notified:
            raise CommandError("No phone was notified.")

    async def _watch(self, session: Session) -> None:
        for who in self._options["who"]:
            self._sender.follow(self._somebody(who))
        cores: list[Core] = [self._sender, *([self._phone] if self._phone.version else [])]
        self._print("Watching. Ctrl-C ends it.")
        seconds = self._options["seconds"] or math.inf
        await asyncio.gather(*(session.drive(core, lambda: False, timeout_seconds=seconds) for core in cores))

    def _note(self, _core: Core, event: Event) -> None:
        self._keep()
        if text := words(event):
            self._print(f"{'→' if isinstance(event, Advertised) else '←'} {text}")

    def _keep(self) -> None:
        write(self._path, Kept(self._phone.identity, self._phone.state))

    def _address(self) -> Address:
        token, app = self._options["token"], self._options["iphone"]
        if token:
            return Address(TokenType.APN if app else TokenType.FIREBASE, token, app)
        return iphone(app, os.urandom) if app else android(os.urandom)

    def _somebody(self, who: str) -> bytes:
        path = _path(who, "") if NAME.fullmatch(who) else None
        return read(path).identity.pub33 if path and path.exists() else _key(who)

    def _print(self, text: str) -> None:
        self._write_line(f"{round((time.monotonic() - self._started) * 1000):>6} ms  {text}")


def _new_client() -> Kept:
    return Kept(new_identity(os.urandom), new_state(random_bytes=os.urandom))


def _path(name: str, file: str) -> Path:
    if file:
        return Path(file)
    if not NAME.fullmatch(name):
        raise CommandError("A name has lower-case letters, digits and hyphens, 31 at most.")
    return Path(settings.DATA_DIR / "clients" / f"{name}.json")


def _key(text: str) -> bytes:
    try:
        return parse_chat_key(text)
    except CodecError as error:
        raise CommandError(f"{text} is neither a client of this machine (--as) nor a chat key.") from error


def words(event: Event) -> str:
    """Return a line about an event, or an empty text for an event that needs none."""
    text = ""
    match event:
        case Accepted(server, version, is_registered):
            outcome = "registered" if is_registered else "unregistered"
            text = f"version {version} accepted by {short(server)}: {outcome}"
        case Refused(server, version, error, _):
            text = f"version {version} refused by {short(server)}: {RegistrationRefused(error, server)}"
        case GivenUp(server, version):
            text = f"{short(server)} never answered version {version}"
        case Advertised(version, servers):
            text = f"contact code published: version {version}, servers: {', '.join(map(short, servers))}"
        case Learned(found, is_advertised):
            source = "the contact code of" if is_advertised else "an answer about"
            text = f"{source} {short(found.client)}: installation {found.installation_id}, its grant is good"
        case Ignored(reason, _, author, detail) if reason not in UNREMARKABLE:
            signer = f"signed by {short(author)}" if author else ""
            text = " ".join(filter(None, ["not accepted:", reason, detail, signer]))
    return text


def short(key: bytes) -> str:
    """Return the first digits of a key."""
    return f"{key.hex()[:KEY_DIGITS]}…"
