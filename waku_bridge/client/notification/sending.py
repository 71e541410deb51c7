"""A sending client, sans I/O: it finds where a client can be notified, and has each device notified once.

It uses the contact codes of clients and queries servers for the rest. It accepts neither without a grant. It reveals
its own identity to nobody: a key that is used for nothing else signs each query.
Sources: status-go protocol/pushnotificationclient/client.go; 71/STATUS-PUSH-NOTIFICATION-SERVER.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from notifications.messages import Report, ReportError
from registrations.messages import QueryInfo
from waku_bridge.client.core import Opened, Opener, Subscriptions, new_identity, topic_key
from waku_bridge.client.events import (
    Destination,
    Event,
    Ignored,
    Learned,
    LookedUp,
    Notified,
    Reason,
    Step,
)
from waku_bridge.client.notification import asking
from waku_bridge.client.notification.asking import Content, ask_to_push
from waku_bridge.client.notification.directory import Directory, verify_info
from waku_bridge.client.notification.notices import Device, Notice, Phase
from waku_bridge.client.notification.queries import Queries, Question, Timeouts
from waku_bridge.client.registration.schedules import RESENDING, SECOND_NS, Schedule
from waku_bridge.codec import topics
from waku_bridge.codec.keys import DecryptionKey, Identity, RandomBytes
from waku_bridge.messages import ContactCodeAdvertisement, PushResponse, QueryResponse, WakuMessage

MAX_DEVICES = 3
MAX_INFOS = 100
MAX_NOTICES = 10_000
# How long answers to a query or a request are read, also after its deadline.
LISTEN_SECONDS = 60.0


@dataclass(slots=True)
class _Request:
    """One push request to one server. ``asked`` has the devices in it, by key hash and installation."""

    server: bytes
    message_id: bytes
    key: Identity
    asked_ns: int
    asked: dict[tuple[bytes, str], tuple[Notice, Device]]
    reported: set[tuple[bytes, str]] = field(default_factory=set)


class SendingClient:
    """A client that notifies others.

    Its ``identity`` opens the access tokens that contacts sealed for it, and is the author in contents. It signs
    nothing.

        sender = SendingClient(identity, os.urandom)
        sender.notify(client, sender.one_to_one(), message_id)
        step = sender.tick(time.time_ns())      # publish step.messages; `Session` does all of this
        step = sender.receive(message, time.time_ns())
        result = sender.result(client, message_id)

    ``client`` is the key (33 bytes) under which a user is registered: the chat key, or in anonymous mode a key that the
    user disclosed. With ``fail_over=False`` there is no request to a second server when the first does not answer. Then
    a notification may be missing, but none comes twice.
    """

    def __init__(
        self,
        identity: Identity,
        random_bytes: RandomBytes,
        *,
        timeouts: Timeouts | None = None,
        schedule: Schedule = RESENDING,
        max_devices: int = MAX_DEVICES,
        fail_over: bool = True,
    ) -> None:
        self.identity = identity
        self.directory = Directory()
        self._random_bytes = random_bytes
        self._timeouts = timeouts or Timeouts()
        self._schedule = schedule
        self._max_devices = max_devices
        self._fail_over = fail_over
        self._opener = Opener(identity)
        self._queries = Queries(random_bytes, self._timeouts)
        self._wanted: set[bytes] = set()  # clients to be looked up at the next tick
        self._followed: dict[bytes, tuple[str, bytes]] = {}  # content topic and its key, by client
        self._history: list[str] = []
        self._notices: OrderedDict[tuple[bytes, bytes], Notice] = OrderedDict()
        self._open: dict[tuple[bytes, bytes], Notice] = {}
        # The open questions by the key that opens their answers, oldest first, with their content topics.
        self._questions: OrderedDict[bytes, tuple[Question | _Request, str]] = OrderedDict()

    # Requests of the user

    def one_to_one(self, message: bytes = b"") -> Content:
        """Return the content of a message from this user to the recipient alone."""
        return asking.one_to_one(self.identity.pub33, message)

    def mention(self, chat_id: bytes, message: bytes = b"") -> Content:
        """Return the content of a message that mentions the recipient, or replies to it, in a chat (`chat_hash` of its
        id).
        """
        return asking.mention(self.identity.pub33, chat_id, message)

    def follow(self, client: bytes) -> None:
        """Read a client's contact codes from now on, and the earlier ones from the store."""
        if client not in self._followed:
            name = topics.contact_code_name(client)
            self._followed[client] = (topics.content_topic(name), topic_key(name))
            self._history.append(topics.content_topic(name))

    def look_up(self, client: bytes) -> None:
        """Query all servers about this client at the next tick, also when destinations are known."""
        if not self._queries.is_open(client):
            self._wanted.add(client)

    def is_looking_up(self, client: bytes) -> bool:
        """Return whether a query about this client is open, or will be at the next tick."""
        return client in self._wanted or self._queries.is_open(client)

    def answer_count(self, client: bytes) -> int:
        """Return the number of servers, honest or not, that answered the last query about this client."""
        question = self._queries.latest(client)
        return len(question.answered_by) if question else 0

    def destinations(self, client: bytes) -> tuple[Destination, ...]:
        """Return the verified destinations of this client."""
        return self.directory.destinations(client)

    def note_activity(self, client: bytes, installation_id: str, at_ns: int) -> None:
        """Note that a message of this client came from that installation.

        The most recently active installations are notified first.
        """
        self.directory.note_activity(client, installation_id, at_ns)

    def notify(
        self, client: bytes, content: Content, message_id: bytes, installation_ids: Sequence[str] | None = None
    ) -> None:
        """Have a client's devices notified about the Status message with this id (32 bytes).

        These are the installations that the message was encrypted for, or all that are known. The most recently active
        ones are notified, up to ``max_devices``. Another call for the same message and client repeats only requests
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
        if self._wanted or self._history or any(map(self._can_start, self._open.values())):
            return 0
        due = [*self._queries.deadlines(), *(notice.deadline_ns() for notice in self._open.values())]
        return min((at_ns for at_ns in due if at_ns is not None), default=None)

    def subscriptions(self) -> Subscriptions:
        subscriptions: dict[str, tuple[DecryptionKey, ...]] = {}
        for content_topic, key in self._followed.values():
            subscriptions[content_topic] = (*subscriptions.get(content_topic, ()), key)
        for question, content_topic in self._questions.values():
            subscriptions[content_topic] = (*subscriptions.get(content_topic, ()), question.key)
        return subscriptions

    def tick(self, now_ns: int) -> Step:
        messages: list[WakuMessage] = []
        events: list[Event] = []
        self._stop_listening(now_ns)
        messages += [self._ask_for(client, now_ns) for client in sorted(self._wanted)]
        self._wanted.clear()
        events += [LookedUp(q.client, len(q.answered_by)) for q in self._queries.close_due(now_ns)]
        for notice in list(self._open.values()):
            self._advance(notice, now_ns, messages, events)
        history = tuple(self._history)
        self._history = []
        return Step(tuple(messages), tuple(events), history)

    def receive(self, message: WakuMessage, now_ns: int) -> Step:
        opened = self._opener.open(message, self.subscriptions())
        if isinstance(opened, Ignored):
            return Step(events=(opened,))
        events = self._judge(opened, message, now_ns)
        author = opened.decoded.author
        by_server = tuple(
            Ignored(event, message.content_topic, author) if isinstance(event, Reason) else event for event in events
        )
        step = self.tick(now_ns)
        return Step(step.messages, (*by_server, *step.events), step.history)

    # Answers

    def _judge(self, opened: Opened, message: WakuMessage, now_ns: int) -> list[Event | Reason]:
        if not isinstance(opened.key, Identity):
            return self._read_contact_code(opened, message, now_ns)
        question, _ = self._questions[opened.key.pub33]
        match opened.decoded.body, question:
            case QueryResponse() as response, Question():
                return self._read_answer(response, question, opened.decoded.author, now_ns)
            case PushResponse() as response, _Request():
                return self._read_reports(response, question, opened.decoded.author, now_ns)
            case QueryResponse() | PushResponse(), _:
                return [Reason.UNKNOWN_REQUEST]
        return [Reason.UNEXPECTED_TYPE]

    def _read_contact_code(self, opened: Opened, message: WakuMessage, now_ns: int) -> list[Event | Reason]:
        """Learn from a contact code, if the client signed it: everybody who has its key can write to its topic."""
        if not isinstance(opened.decoded.body, ContactCodeAdvertisement):
            return [Reason.UNEXPECTED_TYPE]
        client = opened.decoded.author
        if client not in self._followed or self._followed[client][1] != opened.key:
            return [Reason.WRONG_SIGNER]
        learned_at_ns = min(message.timestamp_ns, now_ns)
        infos = opened.decoded.body.info
        by_server = ((info, info.server_public_key) for info in infos[:MAX_INFOS])
        return self._learn(client, by_server, learned_at_ns, is_advertised=True) + _too_many(infos)

    def _read_answer(
        self, response: QueryResponse, question: Question, server: bytes, now_ns: int
    ) -> list[Event | Reason]:
        if response.message_id != question.query_id:
            return [Reason.UNKNOWN_REQUEST]
        question.answered_by.add(server)
        if not response.success:
            return [Reason.FAILED_QUERY]
        by_server = ((info, server) for info in response.info[:MAX_INFOS])
        events = self._learn(question.client, by_server, now_ns, is_advertised=False)
        if any(isinstance(event, Learned) for event in events):
            self._queries.note_useful(question, now_ns)
        return events + _too_many(response.info)

    def _learn(
        self, client: bytes, by_server: Iterable[tuple[QueryInfo, bytes]], learned_at_ns: int, *, is_advertised: bool
    ) -> list[Event | Reason]:
        events: list[Event | Reason] = []
        for info, server in by_server:
            found = verify_info(info, client, server, self.identity)
            if isinstance(found, Reason):
                events.append(found)
                continue
            stale = self.directory.learn(found, learned_at_ns=learned_at_ns)
            events.append(stale or Learned(found, is_advertised))
        return events

    def _read_reports(
        self, response: PushResponse, request: _Request, server: bytes, now_ns: int
    ) -> list[Event | Reason]:
        if response.message_id != request.message_id:
            return [Reason.UNKNOWN_REQUEST]
        if server != request.server:
            return [Reason.WRONG_SIGNER]
        return [event for report in response.reports for event in self._read_report(report, request, now_ns)]

    def _read_report(self, report: Report, request: _Request, now_ns: int) -> list[Event | Reason]:
        """Read one report. The first report about a device in a request counts, and a success counts at any time."""
        key = (report.public_key_hash, report.installation_id)
        if key not in request.asked:
            return [Reason.FOREIGN_INSTALLATION]
        notice, device = request.asked[key]
        if device.is_notified or (key in request.reported and not report.success):
            return [Reason.ALREADY_SETTLED]
        request.reported.add(key)
        if report.success:
            notice.note_success(device)
            return [notice.settled(device)]
        device.silent.discard(request.key.pub33)
        self._unlearn(report, device, request)
        if device.phase is not Phase.ASKED or device.request_key != request.key.pub33:
            return [Reason.ALREADY_SETTLED]
        notice.note_failure(device, report, now_ns, self._schedule)
        return [notice.settled(device)] if device.is_settled else []

    def _unlearn(self, report: Report, device: Device, request: _Request) -> None:
        is_outdated = report.error in {ReportError.WRONG_TOKEN, ReportError.NOT_REGISTERED}
        if is_outdated and device.asked and device.request_key == request.key.pub33:
            self.directory.forget(device.asked)

    # Queries and requests

    def _advance(self, notice: Notice, now_ns: int, messages: list[WakuMessage], events: list[Event]) -> None:
        if not notice.is_started and not self._start(notice, now_ns, messages):
            return
        to_ask: dict[bytes, list[tuple[Device, Destination]]] = {}
        for device in notice.unsettled():
            destination = self._next(notice, device, now_ns, messages)
            if destination:
                to_ask.setdefault(destination.server, []).append((device, destination))
            elif device.is_settled:
                events.append(notice.settled(device))
        for server, pairs in to_ask.items():
            messages.append(self._request(notice, server, pairs, now_ns))
        if not notice.unsettled():
            notice.is_over = True
            self._open.pop((notice.message_id, notice.client), None)
            events.append(notice.result())

    def _start(self, notice: Notice, now_ns: int, messages: list[WakuMessage]) -> bool:
        """Choose the devices, once they are known, and return whether that is done."""
        client = notice.client
        if not notice.has_queried and not self._knows_enough(notice, now_ns):
            self._query(notice, now_ns, messages)
        if notice.has_queried and self._queries.is_open(client):
            return False
        known = self.directory.installation_ids(client) if notice.wanted is None else notice.wanted
        notice.choose(self.directory.by_activity(client, known), self._max_devices)
        notice.answer_count = self.answer_count(client)
        notice.is_started = True
        return True

    def _can_start(self, notice: Notice) -> bool:
        return not notice.is_started and not (notice.has_queried and self._queries.is_open(notice.client))

    def _knows_enough(self, notice: Notice, now_ns: int) -> bool:
        known = self.directory.installation_ids(notice.client)
        is_fresh = self.directory.is_fresh(notice.client, now_ns=now_ns, fresh_seconds=self._timeouts.fresh_seconds)
        return is_fresh and (notice.wanted is None or set(notice.wanted) <= set(known))

    def _next(self, notice: Notice, device: Device, now_ns: int, messages: list[WakuMessage]) -> Destination | None:
        """Return the destination of the next request for a device, or None if none is due."""
        is_querying = self._queries.is_open(notice.client)
        notice.wake(device, now_ns, is_querying=is_querying, fail_over=self._fail_over)
        if device.phase is not Phase.READY:
            return None
        if device.needs_query:
            self._repeat_query(notice, device, now_ns, messages)
            return None
        destination = notice.pick(device, self.directory.destinations(notice.client), self._draw)
        if destination is None and not notice.has_queried:
            self._repeat_query(notice, device, now_ns, messages)
        elif destination is None:
            device.phase = Phase.SETTLED
        return destination

    def _repeat_query(self, notice: Notice, device: Device, now_ns: int, messages: list[WakuMessage]) -> None:
        device.phase = Phase.QUERYING
        device.needs_query = False
        self._query(notice, now_ns, messages)

    def _query(self, notice: Notice, now_ns: int, messages: list[WakuMessage]) -> None:
        notice.has_queried = True
        if not self._queries.is_open(notice.client):
            messages.append(self._ask_for(notice.client, now_ns))

    def _ask_for(self, client: bytes, now_ns: int) -> WakuMessage:
        question, message = self._queries.ask(client, now_ns)
        self._listen(question)
        return message

    def _request(
        self, notice: Notice, server: bytes, pairs: Sequence[tuple[Device, Destination]], now_ns: int
    ) -> WakuMessage:
        key = new_identity(self._random_bytes)
        asked = {
            (destination.public_key_hash, destination.installation_id): (notice, device)
            for device, destination in pairs
        }
        until_ns = now_ns + round(self._timeouts.answer_seconds * SECOND_NS)
        for device, destination in pairs:
            notice.note_asked(device, destination, key.pub33, until_ns)
        self._listen(_Request(server, notice.message_id, key, now_ns, asked))
        return ask_to_push(
            [destination for _, destination in pairs],
            notice.content,
            notice.message_id,
            signer=key,
            timestamp_ns=now_ns,
            random_bytes=self._random_bytes,
        ).message

    def _listen(self, question: Question | _Request) -> None:
        content_topic = topics.content_topic(topics.partitioned_name(question.key.pub33))
        self._questions[question.key.pub33] = (question, content_topic)

    def _stop_listening(self, now_ns: int) -> None:
        oldest_ns = now_ns - round(LISTEN_SECONDS * SECOND_NS)
        while self._questions and next(iter(self._questions.values()))[0].asked_ns < oldest_ns:
            self._questions.popitem(last=False)

    def _draw(self) -> int:
        return int.from_bytes(self._random_bytes(4), "big")


def _too_many(infos: Sequence[QueryInfo]) -> list[Event | Reason]:
    return [Reason.TOO_MANY] if len(infos) > MAX_INFOS else []
