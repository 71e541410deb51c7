"""Model of a push server, without I/O: small enough to be obviously right. It answers clients and counts its pushes.

Its decisions follow status-go. The flow tests run the same clients against the real server.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from notifications.messages import PushRequest, Report, ReportError
from registrations.messages import QueryInfo, RegistrationMessage
from waku_bridge.client.core import Core, new_identity, topic_key
from waku_bridge.client.events import Event
from waku_bridge.codec import wire
from waku_bridge.codec.envelope import decode, encode
from waku_bridge.codec.errors import CodecError
from waku_bridge.codec.keys import Identity, key_hash, sign_grant
from waku_bridge.codec.tests.examples import NOW_NS, SERVER, repeatable
from waku_bridge.codec.wire import PlainBody
from waku_bridge.messages import (
    Decoded,
    PushResponse,
    Query,
    QueryResponse,
    Registration,
    RegistrationError,
    RegistrationResponse,
    WakuMessage,
)

SECOND = 10**9
RANDOM = repeatable()
BACKOFF = json.loads((Path(__file__).parents[3] / "tests" / "vectors" / "vectors.json").read_text())["backoff"]
MESSAGE_ID = b"\x0a" * 32
TABLET = "22222222-2222-4222-8222-222222222222"
SECOND_SERVER = new_identity(repeatable())


@dataclass
class ModelServer:
    """A model server. ``errors`` replace success, one for each report. It answers queries about ``clients`` only."""

    identity: Identity
    clients: set[bytes] = field(default_factory=set)
    registrations: dict[tuple[bytes, str], RegistrationMessage] = field(default_factory=dict)
    errors: list[int] = field(default_factory=list)
    registration_errors: list[int] = field(default_factory=list)
    pushes: Counter = field(default_factory=Counter)
    received: list[Decoded] = field(default_factory=list)
    answered: dict[bytes, list[PlainBody]] = field(default_factory=dict)

    @property
    def key(self) -> bytes:
        return self.identity.pub33

    def enrol(self, client: Identity, installation_id: str, token: str, *, version: int = 1) -> None:
        """Store a registration, as if the client had sent it."""
        self.clients.add(client.pub33)
        grant = sign_grant(client.private_key, self.key, token)
        self.registrations[client.key_hash, installation_id] = RegistrationMessage(
            installation_id, version, access_token=token, grant=grant, enabled=True
        )

    def receive(self, message: WakuMessage, now_ns: int) -> list[WakuMessage]:
        decoded = self.open(message)
        if decoded is None:
            return []
        self.received.append(decoded)
        if decoded.message_id not in self.answered or not isinstance(decoded.body, PushRequest):
            self.answered[decoded.message_id] = self._answer(decoded)
        # A repeated request gets the same answer as before, as from the real server.
        return [self.seal(body, decoded.author, now_ns) for body in self.answered[decoded.message_id]]

    def open(self, message: WakuMessage) -> Decoded | None:
        keys: list[Identity | bytes] = [self.identity]
        keys += [topic_key(wire.query_name(key_hash(client))) for client in sorted(self.clients)]
        try:
            return decode(message.payload, keys, self.identity)
        except CodecError:
            return None

    def seal(self, body: PlainBody, recipient: bytes, now_ns: int) -> WakuMessage:
        return encode(body, signer=self.identity, recipient=recipient, timestamp_ns=now_ns, random_bytes=RANDOM).message

    def _answer(self, decoded: Decoded) -> list[PlainBody]:
        match decoded.body:
            case Registration() as registration:
                return [self._register(registration, decoded.author)]
            case Query() as query:
                infos = tuple(self._infos(query))
                return [QueryResponse(decoded.message_id, success=True, info=infos)] if infos else []
            case PushRequest() as request:
                return [PushResponse(request.message_id, tuple(self._push(request)))]
        return []

    def _register(self, registration: Registration, author: bytes) -> RegistrationResponse:
        wanted = registration.registration
        place = (key_hash(author), wanted.installation_id)
        known = self.registrations.get(place)
        error = self.registration_errors.pop(0) if self.registration_errors else RegistrationError.NONE
        if known and known != wanted and wanted.version <= known.version:
            error = RegistrationError.VERSION_MISMATCH
        if not error:
            assert wanted.unregister or registration.grant_verified
            self.registrations[place] = wanted
            self.clients.add(author)
        return RegistrationResponse(registration.request_id, success=not error, error=error)

    def _infos(self, query: Query):
        for (found, installation_id), known in self.registrations.items():
            if found in query.public_key_hashes and not known.unregister:
                is_open = not known.allow_from_contacts_only
                yield QueryInfo(
                    found,
                    installation_id,
                    known.version,
                    known.grant,
                    known.access_token if is_open else "",
                    known.allowed_key_list,
                )

    def _push(self, request: PushRequest):
        for asked in request.notifications:
            known = self.registrations.get((asked.public_key_hash, asked.installation_id))
            error = self._error(known, asked.access_token)
            if not error:
                place = (request.message_id, asked.public_key_hash, asked.installation_id)
                self.pushes[place] = 1  # a second request for the same is a duplicate, and reported as success
            yield Report(asked.public_key_hash, asked.installation_id, success=not error, error=error)

    def _error(self, known: RegistrationMessage | None, token: str) -> int:
        if known is None or known.unregister:
            return ReportError.NOT_REGISTERED
        if known.access_token != token:
            return ReportError.WRONG_TOKEN
        return self.errors.pop(0) if self.errors else ReportError.NONE


class World:
    """Clients and servers on a network that loses nothing and needs no time. ``mute`` servers receive no message."""

    def __init__(self, *servers: ModelServer, now_ns: int = 1_700_000_000 * SECOND) -> None:
        self.servers = servers
        self.mute: set[bytes] = set()
        self.now_ns = now_ns
        self.events: list[Event] = []
        self.sent: list[WakuMessage] = []

    def run(self, core: Core) -> list[Event]:
        """Deliver all messages that need no time, and return the events."""
        begin = len(self.events)
        self._carry(core, core.tick(self.now_ns))
        return self.events[begin:]

    def wait(self, core: Core, seconds: float) -> list[Event]:
        """Let time pass, and run the client whenever it has work that is due."""
        begin, end_ns = len(self.events), self.now_ns + round(seconds * SECOND)
        while (due_ns := core.deadline_ns) is not None and due_ns <= end_ns:
            self.now_ns = max(self.now_ns, due_ns)
            self.run(core)
        self.now_ns = end_ns
        self.run(core)
        return self.events[begin:]

    def report(self, core: Core, message: WakuMessage) -> list[Event]:
        """Deliver a message that no server of this world wrote."""
        begin = len(self.events)
        self._carry(core, core.receive(message, self.now_ns))
        return self.events[begin:]

    def _carry(self, core: Core, step) -> None:
        self.events += step.events
        for message in step.messages:
            self.sent.append(message)
            for server in self.servers:
                if server.key not in self.mute:
                    for answer in server.receive(message, self.now_ns):
                        self._carry(core, core.receive(answer, self.now_ns))


def sealed(body: PlainBody, recipient: bytes, signer: Identity = SERVER) -> WakuMessage:
    """Return the answer of a server that has no reason to give it."""
    return ModelServer(signer).seal(body, recipient, NOW_NS)
