"""A sending client, sans I/O: it finds where a client can be notified, and has each device notified once.

It uses the contact codes of clients and queries servers for the rest. It accepts neither without a grant. It reveals
its own identity to nobody: each query and each request has a key of its own, so that nobody can tell that two come from
the same sender. The key that an answer is sealed for identifies the query or request.
Sources: status-go protocol/pushnotificationclient/client.go; 71/STATUS-PUSH-NOTIFICATION-SERVER.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from notifications.messages import NotificationType, PushNotification, Report, ReportError
from registrations.messages import QueryInfo
from waku_bridge.client.core import SECOND_NS, Core, Opened, Subscriptions, new_identity, topic_key
from waku_bridge.client.directory import Directory, verify_info
from waku_bridge.client.events import Destination, Event, Learned, LookedUp, Notified, Reason, Step
from waku_bridge.client.notices import Device, Notice, Phase, ask_to_push, content_of, one_to_one
from waku_bridge.codec import wire
from waku_bridge.codec.envelope import encode
from waku_bridge.codec.keys import DecryptionKey, Identity, RandomBytes, key_hash
from waku_bridge.messages import ContactCodeAdvertisement, PushResponse, Query, QueryResponse, WakuMessage

FRESH_NS = 86_400 * SECOND_NS  # older destinations are queried again
MAX_INFOS = 100
MAX_NOTICES = 10_000
# How long answers to a query or a request are read, also after its deadline.
LISTEN_SECONDS = 60.0


@dataclass
class _Asked:
    """A query or a request. ``key`` signed it and opens its answers, which repeat its ``message_id`` (32 bytes)."""

    key: Identity
    message_id: bytes
    asked_ns: int

    @cached_property
    def content_topic(self) -> str:
        """Return the topic of its answers."""
        return wire.content_topic(wire.partitioned_name(self.key.pub33))


@dataclass
class _Query(_Asked):
    """A query to all servers about one client.

    Everybody sees it and may answer it. So only an answer with a verified entry ends the waiting, and even then a
    moment later, because other servers may have other devices.
    """

    client: bytes
    ends_ns: int
    answered_by: set[bytes] = field(default_factory=set)
    is_over: bool = False


@dataclass
class _Request(_Asked):
    """A push request to one server. ``devices`` are by key hash and installation."""

    server: bytes
    notice: Notice
    devices: dict[tuple[bytes, str], Device]


class SendingClient(Core):
    """A client that notifies others.

    Its ``identity`` opens the access tokens that contacts sealed for it, and is the author in contents. It signs
    nothing.

    ``client`` is the key (33 bytes) under which a user is registered: the chat key, or in anonymous mode a key that the
    user disclosed. A query or request waits ``answer_seconds`` for an answer. After a useful answer, a query waits
    ``gather_seconds`` for those of other servers. With ``fail_over=False`` there is no request to a second server when
    the first does not answer. Then a notification may be missing, but none comes twice.
    """

    def __init__(
        self,
        identity: Identity,
        random_bytes: RandomBytes,
        *,
        answer_seconds: float = 3.0,
        gather_seconds: float = 0.3,
        fail_over: bool = True,
    ) -> None:
        super().__init__(identity)
        self.directory = Directory()
        self._random_bytes = random_bytes
        self._answer_ns, self._gather_ns = round(answer_seconds * SECOND_NS), round(gather_seconds * SECOND_NS)
        self._fail_over = fail_over
        self._wanted: set[bytes] = set()  # clients to be looked up at the next tick
        self._followed: dict[bytes, tuple[str, bytes]] = {}  # content topic and its key, by client
        self._history: list[str] = []
        self._queries: dict[bytes, _Query] = {}  # the latest one, by client
        self._notices: OrderedDict[tuple[bytes, bytes], Notice] = OrderedDict()
        self._open: dict[tuple[bytes, bytes], Notice] = {}
        # All whose answers are read, by the key that opens these, oldest first.
        self._asked: OrderedDict[bytes, _Query | _Request] = OrderedDict()

    # Requests of the user

    def one_to_one(self, message: bytes = b"") -> PushNotification:
        """Return the content of a message from this user to the recipient alone."""
        return one_to_one(self.identity.pub33, message)

    def mention(self, chat_id: bytes, message: bytes = b"") -> PushNotification:
        """Return the content of a message that mentions the recipient, or replies to it, in a chat (`chat_hash` of its
        id).
        """
        return content_of(NotificationType.MENTION, self.identity.pub33, chat_id=chat_id, message=message)

    def follow(self, client: bytes) -> None:
        """Read a client's contact codes from now on, and the earlier ones from the store."""
        if client not in self._followed:
            name = wire.contact_code_name(client)
            self._followed[client] = (wire.content_topic(name), topic_key(name))
            self._history.append(wire.content_topic(name))

    def look_up(self, client: bytes) -> None:
        """Query all servers about this client at the next tick, also when destinations are known."""
        if not self._is_querying(client):
            self._wanted.add(client)

    def is_looking_up(self, client: bytes) -> bool:
        """Return whether a query about this client is open, or will be at the next tick."""
        return client in self._wanted or self._is_querying(client)

    def answer_count(self, client: bytes) -> int:
        """Return the number of servers, honest or not, that answered the last query about this client."""
        return len(self._queries[client].answered_by) if client in self._queries else 0

    def destinations(self, client: bytes) -> tuple[Destination, ...]:
        """Return the verified destinations of this client."""
        return self.directory.destinations(client)

    def notify(
        self, client: bytes, content: PushNotification, message_id: bytes, installation_ids: Sequence[str] | None = None
    ) -> None:
        """Have a client's devices notified about the Status message with this id (32 bytes).

        These are the installations that the message was encrypted for, or all that are known. The most recently active
        ones are notified, up to `MAX_DEVICES`. Another call for the same message and client repeats only requests
        that have certainly failed.
        """
        wanted = None if installation_ids is None else tuple(installation_ids)
        key = (message_id, client)
        notice = self._notices.setdefault(key, Notice(message_id, client, content, wanted))
        notice.reopen(wanted)
        self._open[key] = notice
        self._notices.move_to_end(key)
        if len(self._notices) > MAX_NOTICES:
            self._open.pop(self._notices.popitem(last=False)[0], None)

    def result(self, client: bytes, message_id: bytes) -> Notified | None:
        """Return the result of a notification, or None while it is not settled, or was never requested."""
        notice = self._notices.get((message_id, client))
        return notice.result() if notice and notice.is_over else None

    # The interface of a core

    @property
    def deadline_ns(self) -> int | None:
        if self._wanted or self._history:
            return 0
        due = [query.ends_ns for query in self._queries.values() if not query.is_over]
        due += [notice.deadline_ns() for notice in self._open.values() if not self._is_querying(notice.client)]
        return min(due, default=None)

    def subscriptions(self) -> Subscriptions:
        subscriptions: dict[str, tuple[DecryptionKey, ...]] = {}
        for content_topic, key in self._followed.values():
            subscriptions[content_topic] = (*subscriptions.get(content_topic, ()), key)
        for asked in self._asked.values():
            subscriptions[asked.content_topic] = (*subscriptions.get(asked.content_topic, ()), asked.key)
        return subscriptions

    def tick(self, now_ns: int) -> Step:
        step = Step(history=self._history)
        self._history = []
        self._stop_listening(now_ns)
        for client in sorted(self._wanted):
            self._query(client, now_ns, step)
        self._wanted.clear()
        for query in self._queries.values():
            if not query.is_over and now_ns >= query.ends_ns:
                query.is_over = True
                step.events.append(LookedUp(query.client, len(query.answered_by)))
        for notice in list(self._open.values()):
            self._advance(notice, now_ns, step)
        return step

    # Answers

    def _judge(self, opened: Opened, now_ns: int) -> list[Event]:
        body = opened.decoded.body
        if not isinstance(opened.key, Identity):
            return self._read_contact_code(opened, min(opened.sent_at_ns, now_ns))
        if not isinstance(body, QueryResponse | PushResponse):
            return [opened.ignored(Reason.UNEXPECTED_TYPE)]
        asked = self._asked[opened.key.pub33]
        if body.message_id == asked.message_id:
            match body, asked:
                case QueryResponse(), _Query():
                    return self._read_answer(opened, body, asked, now_ns)
                case PushResponse(), _Request() if opened.decoded.author != asked.server:
                    return [opened.ignored(Reason.WRONG_SIGNER)]
                case PushResponse(), _Request():
                    return [e for r in body.reports for e in self._read_report(opened, r, asked, now_ns)]
        return [opened.ignored(Reason.UNKNOWN_REQUEST)]

    def _read_contact_code(self, opened: Opened, learned_at_ns: int) -> list[Event]:
        """Learn from a contact code, if the client signed it: everybody who has its key can write to its topic."""
        body, client = opened.decoded.body, opened.decoded.author
        if not isinstance(body, ContactCodeAdvertisement):
            return [opened.ignored(Reason.UNEXPECTED_TYPE)]
        if client not in self._followed:
            return [opened.ignored(Reason.WRONG_SIGNER)]
        return self._learn(opened, client, body.info, learned_at_ns, answered_by=None)

    def _read_answer(self, opened: Opened, response: QueryResponse, query: _Query, now_ns: int) -> list[Event]:
        server = opened.decoded.author
        query.answered_by.add(server)
        if not response.success:
            return [opened.ignored(Reason.FAILED_QUERY)]
        events = self._learn(opened, query.client, response.info, now_ns, answered_by=server)
        if any(isinstance(event, Learned) for event in events):
            query.ends_ns = min(query.ends_ns, now_ns + self._gather_ns)
        return events

    def _learn(
        self,
        opened: Opened,
        client: bytes,
        infos: Sequence[QueryInfo],
        learned_at_ns: int,
        *,
        answered_by: bytes | None,
    ) -> list[Event]:
        """Learn from entries of a server's answer, or else of a contact code, whose entries name their servers."""
        events: list[Event] = []
        for info in infos[:MAX_INFOS]:
            server = info.server_public_key if answered_by is None else answered_by
            found = verify_info(info, client, server, self.identity)
            if isinstance(found, Destination):
                stale = self.directory.learn(found, learned_at_ns=learned_at_ns)
                events.append(opened.ignored(stale) if stale else Learned(found, is_advertised=answered_by is None))
            else:
                events.append(opened.ignored(found))
        return [*events, opened.ignored(Reason.TOO_MANY)] if len(infos) > MAX_INFOS else events

    def _read_report(self, opened: Opened, report: Report, request: _Request, now_ns: int) -> list[Event]:
        """Read one report. The first report about a device in a request counts, and a success counts at any time."""
        notice, device = request.notice, request.devices.get((report.public_key_hash, report.installation_id))
        if device is None:
            return [opened.ignored(Reason.FOREIGN_INSTALLATION)]
        if device.is_notified:
            return [opened.ignored(Reason.ALREADY_SETTLED)]
        if report.success:
            device.note_success()
            return [notice.settled(device)]
        device.silent.discard(request.key.pub33)
        is_latest = device.request_key == request.key.pub33
        if is_latest and device.asked and report.error in {ReportError.WRONG_TOKEN, ReportError.NOT_REGISTERED}:
            self.directory.forget(device.asked)
        if not is_latest or device.phase is not Phase.ASKED:
            return [opened.ignored(Reason.ALREADY_SETTLED)]
        device.note_failure(report.error, now_ns)
        notice.has_queried = notice.has_queried and report.error != ReportError.WRONG_TOKEN
        return [notice.settled(device)] if device.is_settled else []

    # Queries and requests

    def _advance(self, notice: Notice, now_ns: int, step: Step) -> None:
        if self._is_querying(notice.client):
            notice.has_queried = True  # its answers may have other devices, or newer tokens
            return
        if not notice.is_started and not self._start(notice, now_ns, step):
            return
        to_ask: defaultdict[bytes, list[tuple[Device, Destination]]] = defaultdict(list)
        for device in notice.unsettled():
            device.wake(now_ns, fail_over=self._fail_over)
            if device.phase is Phase.READY and (destination := self._next(notice, device, now_ns, step)):
                to_ask[destination.server].append((device, destination))
            if device.is_settled:
                step.events.append(notice.settled(device))
        for server, pairs in to_ask.items():
            step.messages.append(self._request(notice, server, pairs, now_ns))
        if not notice.unsettled():
            notice.is_over = True
            self._open.pop((notice.message_id, notice.client), None)
            step.events.append(notice.result())

    def _start(self, notice: Notice, now_ns: int, step: Step) -> bool:
        """Choose the devices, once they are known, and return whether that is done."""
        client = notice.client
        known = {place.installation_id for place in self.directory.destinations(client)}
        is_fresh = self.directory.is_fresh(client, since_ns=now_ns - FRESH_NS)
        knows_enough = is_fresh and (notice.wanted is None or known >= set(notice.wanted))
        if not notice.has_queried and not knows_enough:
            self._query(client, now_ns, step)
            notice.has_queried = True
            return False
        wanted = known if notice.wanted is None else notice.wanted
        notice.choose(self.directory.by_activity(client, wanted))
        return True

    def _next(self, notice: Notice, device: Device, now_ns: int, step: Step) -> Destination | None:
        """Return the destination of the next request for a device, or None if none is known."""
        destination = notice.pick(device, self.directory.destinations(notice.client))
        if destination is None and not self._is_querying(notice.client):
            if notice.has_queried:
                device.phase = Phase.SETTLED
            else:
                self._query(notice.client, now_ns, step)
                notice.has_queried = True
        return destination

    def _is_querying(self, client: bytes) -> bool:
        """Return whether a query about this client waits for answers."""
        return client in self._queries and not self._queries[client].is_over

    def _query(self, client: bytes, now_ns: int, step: Step) -> None:
        """Start a query. The first one for a client costs 15 ms of CPU time."""
        key = new_identity(self._random_bytes)
        encoded = encode(
            Query((key_hash(client),)),
            signer=key,
            topic_key=topic_key(wire.query_name(key_hash(client))),
            timestamp_ns=now_ns,
            random_bytes=self._random_bytes,
        )
        query = _Query(key, encoded.message_id, now_ns, client, now_ns + self._answer_ns)
        self._queries[client] = self._asked[key.pub33] = query
        step.messages.append(encoded.message)

    def _request(
        self, notice: Notice, server: bytes, pairs: Sequence[tuple[Device, Destination]], now_ns: int
    ) -> WakuMessage:
        key = new_identity(self._random_bytes)
        for device, destination in pairs:
            device.note_asked(destination, key.pub33, now_ns + self._answer_ns)
        devices = {(place.public_key_hash, place.installation_id): device for device, place in pairs}
        self._asked[key.pub33] = _Request(key, notice.message_id, now_ns, server, notice, devices)
        return ask_to_push(
            [destination for _, destination in pairs],
            notice.content,
            notice.message_id,
            signer=key,
            timestamp_ns=now_ns,
            random_bytes=self._random_bytes,
        ).message

    def _stop_listening(self, now_ns: int) -> None:
        oldest_ns = now_ns - round(LISTEN_SECONDS * SECOND_NS)
        while self._asked and next(iter(self._asked.values())).asked_ns < oldest_ns:
            self._asked.popitem(last=False)
