"""A sending client, sans I/O: asks where somebody can be notified, and asks servers to do it.

It speaks under an ephemeral key, in the outer frame too, so that neither the network nor a server learns who it is;
status-go signs the frame with its identity. Sources: status-go protocol/pushnotificationclient/client.go;
71/STATUS-PUSH-NOTIFICATION-SERVER.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from notifications.messages import NotificationType, PushNotification, PushRequest, Report
from registrations.messages import QueryInfo
from registrations.uuids import is_uuid
from waku_bridge.codec import topics
from waku_bridge.codec.access_tokens import find_access_token
from waku_bridge.codec.envelope import Encoded, encode_query, encode_request
from waku_bridge.codec.grants import verify_grant
from waku_bridge.codec.keys import Identity, author_hash, key_hash
from waku_bridge.codec.randomness import RandomBytes
from waku_bridge.messages import Decoded, PushResponse, Query, QueryResponse


@dataclass(frozen=True, slots=True)
class Destination:
    """One installation this sender may notify, and the server (33 bytes) that would do it."""

    server: bytes
    public_key_hash: bytes
    installation_id: str
    access_token: str = field(repr=False)
    version: int


@dataclass(frozen=True, slots=True)
class Content:
    """What a notification is about: ``chat_id`` and ``author`` are hashes (64 bytes), ``message`` is for the device."""

    type: int
    chat_id: bytes
    author: bytes
    message: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Found:
    """A server's answer to a query, without what does not concern us, is not granted to it, or we cannot open."""

    query_id: bytes
    server: bytes
    destinations: tuple[Destination, ...]


@dataclass(frozen=True, slots=True)
class Reported:
    """A server's answer to a request: one report per notification, in the order asked."""

    message_id: bytes
    server: bytes
    reports: tuple[Report, ...]


class SendingClient:
    """``ephemeral`` signs and is answered; ``identity`` only opens the access tokens that contacts sealed for it."""

    def __init__(self, identity: Identity, ephemeral: Identity, random_bytes: RandomBytes) -> None:
        self.identity = identity
        self.ephemeral = ephemeral
        self._random_bytes = random_bytes
        self._topic_keys: dict[str, bytes] = {}
        self._queried: dict[bytes, bytes] = {}  # client (33 bytes) by id of the query
        self._requested: set[tuple[bytes, bytes]] = set()  # id of the Status message, server

    @property
    def receiver(self) -> Identity:
        return self.ephemeral

    def one_to_one(self, message: bytes = b"") -> Content:
        """A message from this user to the recipient alone: the chat is named after its other side, which is us."""
        me = author_hash(self.identity.pub33)
        return Content(NotificationType.MESSAGE, chat_id=me, author=me, message=message)

    def query(self, client: bytes, *, timestamp_ns: int) -> Encoded:
        """Ask every server that knows this client (33 bytes). The first time for a client costs 15 ms of CPU."""
        encoded = encode_query(
            Query((key_hash(client),)),
            signer=self.ephemeral,
            topic_key=self._topic_key(topics.query_name(key_hash(client))),
            timestamp_ns=timestamp_ns,
            random_bytes=self._random_bytes,
        )
        self._queried[encoded.message_id] = client
        return encoded

    def request(
        self, destinations: Sequence[Destination], content: Content, message_id: bytes, *, timestamp_ns: int
    ) -> Encoded:
        """Ask one server to push the same content to several installations.

        ``message_id`` names the Status message notified about; its sender chooses it, and its answer repeats it. The
        same arguments give the same signed message again, in another envelope. Raises ValueError when the destinations
        are of several servers, or of none.
        """
        servers = {destination.server for destination in destinations}
        if len(servers) != 1:
            raise ValueError("a request goes to exactly one server")
        server = servers.pop()
        encoded = encode_request(
            PushRequest(message_id, tuple(_notification(destination, content) for destination in destinations)),
            signer=self.ephemeral,
            server=server,
            timestamp_ns=timestamp_ns,
            random_bytes=self._random_bytes,
        )
        self._requested.add((message_id, server))
        return encoded

    def receive(self, message: Decoded) -> Found | Reported | None:
        """The answer to a query, from whichever server knows, or to a request, from the server it was sent to."""
        match message.body:
            case QueryResponse() as response if response.message_id in self._queried:
                client = self._queried[response.message_id]
                destinations = tuple(self._usable(response, client, server=message.author))
                return Found(response.message_id, message.author, destinations)
            case PushResponse() as response if (response.message_id, message.author) in self._requested:
                return Reported(response.message_id, message.author, response.reports)
        return None

    def _topic_key(self, name: str) -> bytes:
        if name not in self._topic_keys:
            self._topic_keys[name] = topics.symmetric_key(name)
        return self._topic_keys[name]

    def _usable(self, response: QueryResponse, client: bytes, *, server: bytes) -> Iterator[Destination]:
        """Anybody may answer a query: only a grant from the client itself makes the answering server its server."""
        for info in response.info:
            token = self._access_token(info, client)
            if (
                token
                and info.public_key_hash == key_hash(client)
                and verify_grant(info.grant, client=client, server=server, access_token=token)
            ):
                yield Destination(server, info.public_key_hash, info.installation_id, token, info.version)

    def _access_token(self, info: QueryInfo, client: bytes) -> str | None:
        if info.access_token:
            return info.access_token if is_uuid(info.access_token) else None
        return find_access_token(info.allowed_key_list, self.identity.private_key, client)


def _notification(destination: Destination, content: Content) -> PushNotification:
    return PushNotification(
        public_key_hash=destination.public_key_hash,
        installation_id=destination.installation_id,
        access_token=destination.access_token,
        type=content.type,
        chat_id=content.chat_id,
        author=content.author,
        message=content.message,
    )
