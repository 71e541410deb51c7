"""Ledger of a simulated run, which checks after every step that the invariants hold, whatever failed in it.

* Nothing is lost: an accepted notification has a due time, or is at its end; an answered request has its
  reply.
* A push is repeated only with the same collapse id, and never after it was recorded as delivered.
* Replies are truthful, and a repeat has the same content.
* Quotas are kept.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import orjson
import psycopg
from coincurve import PrivateKey
from django.conf import settings

from notifications.acceptance.acceptance import dedup_key
from notifications.messages import Outcome, Push, PushNotification, Report, ReportError, Result
from notifications.models import Notification
from registrations.messages import TokenType
from tests.simulation.processes import IN_FLIGHT
from waku_bridge.codec.envelope import decode
from waku_bridge.codec.errors import NotDecryptable
from waku_bridge.codec.keys import Identity
from waku_bridge.messages import PushResponse, WakuMessage

DUE = {"pending", "retrying", "ambiguous"}
REPORTED = {"delivered": "success", "dead_token": "not_registered"}

SNAPSHOT = """
    SELECT json_build_object(
        'notifications', (SELECT json_agg(json_build_array(
            n.id, n.request_id, n.state, n.report, n.attempt_count, n.ambiguous_count, n.due_at IS NOT NULL,
            n.message IS NOT NULL, encode(n.dedup_key, 'hex'),
            (SELECT count(*) FROM notifications_attempt WHERE notification_id = n.id),
            n.route_id, n.installation_id
        ) ORDER BY n.id) FROM notifications_notification AS n),
        'requests', (SELECT json_agg(json_build_array(
            r.id, r.state, r.reply_address IS NOT NULL,
            (SELECT count(*) FROM waku_bridge_outboundreply AS reply WHERE reply.envelope_hash = r.source_key),
            (SELECT count(*) FROM notifications_notification AS n WHERE n.request_id = r.id AND n.report IS NULL)
        ) ORDER BY r.id) FROM notifications_notificationrequest AS r),
        'registrations', (
            SELECT json_agg(json_build_array(id, version, state, installation_id)) FROM registrations_registration),
        'envelopes', (
            SELECT json_agg(json_build_array(encode(known.hash, 'hex'), coalesce(state, 'removed')))
            FROM waku_bridge_envelopehash AS known LEFT JOIN waku_bridge_inboundenvelope USING (hash)),
        'replies', (SELECT json_agg(json_build_array(id, state)) FROM waku_bridge_outboundreply)
    )
"""
HAS_ATTEMPT = """
    SELECT encode(n.dedup_key, 'hex'), n.report, a.outcome FROM notifications_attempt AS a
    JOIN notifications_notification AS n ON n.id = a.notification_id
    WHERE a.notification_id = %s AND a.number = %s
"""


class Broken(BaseException):
    """An invariant does not hold. It is a BaseException so that no handler of the server catches it."""


class Row(NamedTuple):
    """A stored notification."""

    id: int
    request_id: int
    state: str
    report: str | None
    attempt_count: int
    ambiguous_count: int
    is_due: bool
    has_message: bool
    dedup_key: str | None
    attempts: int
    route_id: int | None
    installation_id: str


def make_uuid(random: Random) -> str:
    return str(UUID(bytes=random.randbytes(16), version=4))


class Phone:
    """An installation, with its latest registration."""

    def __init__(self, number: int, random: Random) -> None:
        self.identity = Identity(PrivateKey(bytes([0x51 + number]) * 32))
        self.installation_id = f"{number}1111111-1111-4111-8111-11111111111{number}"
        self.token_type = random.choice([TokenType.APN, TokenType.FIREBASE])
        self.version = 0
        self.access_token = ""
        self.device_token = ""
        self.is_steady = True  # it registered once, and its address works

    def register(self, random: Random) -> None:
        """Make a new version, and perhaps new tokens."""
        self.is_steady &= not self.version
        self.version += 1
        if not self.access_token or random.random() < 0.5:
            self.access_token = make_uuid(random)
        if not self.device_token or random.random() < 0.5:
            self.device_token = random.randbytes(32 if self.token_type == TokenType.APN else 80).hex()


@dataclass(frozen=True, slots=True)
class Hope:
    """Possible reports on one notification, from the state of its recipient."""

    phone: Phone
    is_token_right: bool
    was_registered: bool  # at the time of the request

    @property
    def is_sure(self) -> bool:
        return self.was_registered and self.phone.is_steady

    def true_errors(self) -> set[int]:
        """Return the errors that may truthfully be reported to the sender."""
        wrong = {int(ReportError.WRONG_TOKEN)}
        unsure = set() if self.is_sure else {int(ReportError.NOT_REGISTERED), *wrong}
        return unsure | ({int(ReportError.NONE)} if self.is_token_right else wrong)

    def is_certain(self) -> bool:
        """Return whether the notification has to be delivered."""
        return self.is_sure and self.is_token_right


@dataclass
class Asked:
    """A sender's request, and the possible reports on each notification."""

    sender: Identity
    message_id: bytes
    notifications: tuple[PushNotification, ...]
    expectations: Sequence[Hope]
    reports: tuple[Report, ...] | None = None


class Ledger:
    """Everything seen so far, against which each new event is checked."""

    def __init__(self, monitor: "psycopg.Connection[Any]") -> None:
        self._monitor = monitor
        self.limit_in_flight = IN_FLIGHT
        self.max_for_a_route = settings.MAX_OPEN_PER_ROUTE
        self._notifications: dict[int, Row] = {}
        self._registrations: dict[int, int] = {}
        self._envelopes: dict[str, str] = {}
        self.state: dict[str, Any] = {}
        self.asked: dict[bytes, Asked] = {}  # by the sender's key
        self.pushes: defaultdict[str, list[str]] = defaultdict(list)  # outcomes by collapse id
        self._under_way: Counter[tuple[str, Any]] = Counter()
        self.counts: Counter[str] = Counter()
        self._named: defaultdict[str, list[PushNotification]] = defaultdict(list)  # by the expected collapse id

    # Clients ----------------------------------------------------------------------------------------------------------

    def expect(self, asked: Asked) -> None:
        """Record a request that is about to be sent."""
        self.asked[asked.sender.pub33] = asked
        for notification in asked.notifications:
            self._named[_name(asked, notification)].append(notification)

    def receive(self, message: WakuMessage) -> None:
        """Open a reply as its receiver would, and check it against the request."""
        for asked in self.asked.values():
            try:
                decoded = decode(message.payload, [asked.sender], asked.sender)
            except NotDecryptable:
                continue
            if isinstance(decoded.body, PushResponse):
                self.counts["replies"] += 1
                self._check_reply(asked, decoded.body)
            return

    def _check_reply(self, asked: Asked, shown: PushResponse) -> None:
        _hold(shown.message_id == asked.message_id, "a reply names another message")
        _hold(asked.reports in (None, shown.reports), "a repeat has another content")
        asked.reports = shown.reports
        named = [(report.public_key_hash, report.installation_id) for report in shown.reports]
        wanted = [(n.public_key_hash, n.installation_id) for n in asked.notifications]
        _hold(named == wanted, "a reply reports on other notifications than requested")
        for report, expectation in zip(shown.reports, asked.expectations, strict=True):
            _hold(report.success == (report.error == ReportError.NONE), "a success with an error")
            true = expectation.true_errors()
            _hold(report.error in true, f"a reply reports {report.error}, and only {true} is true")

    # Pushes -----------------------------------------------------------------------------------------------------------

    def push(self, process: Any, push: Push) -> None:
        """Record a push. Its attempt must have been stored before, and its collapse id must be the right one."""
        self.counts["pushes"] += 1
        self._under_way[process.name, push.app] += 1
        # An app has two queues: for proven addresses, and for the others.
        _hold(self._under_way[process.name, push.app] <= 2 * self.limit_in_flight, "a queue is overfull")
        known = self._named.get(push.collapse_id, [])
        _hold(bool(known), "a push has an unknown collapse id")
        _hold(push.public_key_hash == known[0].public_key_hash, "a push goes to another recipient")
        _hold(push.message in {b"", *(n.message for n in known)}, "a push has another payload")
        [*found] = self._monitor.execute(HAS_ATTEMPT, [push.notification_id, push.attempt_number])
        _hold(bool(found), "a push left before its attempt was written")
        _hold(found[0][1] != "internal_error", "a refused notification is pushed")
        self.counts["pushed again"] += bool(self.pushes[push.collapse_id])
        self.pushes[push.collapse_id].append("sent")

    def answered(self, process: Any, push: Push, result: Result) -> None:
        """Record the result of a gateway."""
        self._under_way[process.name, push.app] -= 1
        self.pushes[push.collapse_id].append(str(result.outcome))

    # Stored rows ------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check all stored rows, and their changes since the last check."""
        [(text,)] = self._monitor.execute(SNAPSHOT, prepare=True)
        self.state = orjson.loads(text) if isinstance(text, str | bytes) else text
        rows = [Row._make(row) for row in self.state["notifications"] or ()]
        _hold(self._notifications.keys() <= {row.id for row in rows}, "a notification is gone")
        for row in rows:
            self._check_row(row)
            self._check_change(row, self._notifications.get(row.id))
        self._notifications = {row.id: row for row in rows}
        # Notifications that failed under way wait beside these, until the next one comes for their address.
        waiting = Counter(row.route_id for row in rows if row.state == "pending")
        _hold(max(waiting.values(), default=0) <= self.max_for_a_route, "too many notifications wait for one address")
        for request in self.state["requests"] or ():
            _check_request(*request)
        self._check_registrations()
        self._check_envelopes()
        self.counts["checks"] += 1

    def _check_row(self, row: Row) -> None:
        is_terminal = Notification.State(row.state).is_terminal
        _hold(row.is_due != is_terminal, f"{row.state}, has a due time: {row.is_due}")
        _hold(not (is_terminal and row.has_message), "an ended notification keeps its payload")
        _hold(row.attempt_count == row.attempts, "an attempt is not counted, or counted twice")

    def _check_change(self, row: Row, before: Row | None) -> None:
        if before is None:
            return
        if Notification.State(before.state).is_terminal:
            _hold(row.state == before.state, f"a notification that was {before.state} is {row.state}")
            _hold(row.attempt_count == before.attempt_count, "an ended notification has a new attempt")
        _hold(before.report in (None, row.report), "a report changed after it was given")
        _hold(row.attempt_count >= before.attempt_count, "an attempt is forgotten")
        if before.report is None and row.report and row.state in REPORTED:
            _hold(row.report == REPORTED[row.state], f"{row.state} is reported as {row.report}")

    def _check_registrations(self) -> None:
        versions = {pk: version for pk, version, *_ in self.state["registrations"] or ()}
        _hold(self._registrations.keys() <= versions.keys(), "a registration is gone")
        for pk, version in self._registrations.items():
            _hold(versions[pk] >= version, "the version of a registration went back")
        self._registrations = versions

    def _check_envelopes(self) -> None:
        envelopes = dict(self.state["envelopes"] or ())
        _hold("failed" not in envelopes.values(), "an envelope failed")
        _hold(self._envelopes.keys() <= envelopes.keys(), "an envelope is gone")
        for name, state in self._envelopes.items():
            is_back = state in {"processed", "dropped", "removed"} and envelopes[name] != state
            _hold(not is_back, f"an envelope that was {state} is {envelopes[name]}")
        self._envelopes = envelopes

    # The end ----------------------------------------------------------------------------------------------------------

    def unfinished(self, wanted: Iterable[bytes]) -> list[str]:
        """Return everything that is not finished."""
        open_states = {state.value for state in Notification.State if not state.is_terminal}
        return [
            *(f"envelope {h.hex()[:8]} not read" for h in wanted if h.hex() not in self._envelopes),
            *(
                f"envelope {name[:8]} {s}"
                for name, s in self._envelopes.items()
                if s in {"received", "postponed", "pending_key"}
            ),
            *(f"notification {n.id} {n.state}" for n in self._notifications.values() if n.state in open_states),
            *(f"request {r[0]} {r[1]}" for r in self.state["requests"] or () if r[1] == "waiting"),
            *(f"reply {pk} {state}" for pk, state in self.state["replies"] or () if state == "pending"),
        ]

    def check_end(self) -> None:
        """Check the end of the run against all requests."""
        for row in self._notifications.values():
            answers = self.pushes.get((row.dedup_key or "")[:32], [])
            if row.state == "delivered":
                _hold(str(Outcome.DELIVERED) in answers, "delivered, but no gateway took it")
            _hold(row.state != "expired", "expired within minutes")
        for asked in self.asked.values():
            _hold(asked.reports is not None, "a request has no reply")
            for notification, expectation in zip(asked.notifications, asked.expectations, strict=True):
                self._check_fate(_name(asked, notification), notification.installation_id, expectation)

    def _check_fate(self, name: str, installation_id: str, expectation: Hope) -> None:
        answers = self.pushes.get(name, [])
        is_delivered = str(Outcome.DELIVERED) in answers
        if expectation.is_certain():
            is_coalesced = self._is_coalesced(name) or self._is_left_out(name, installation_id)
            _hold(is_delivered or is_coalesced, "a notification is lost")
        self.counts["delivered"] += is_delivered

    def _is_left_out(self, name: str, installation_id: str) -> bool:
        """Return whether a notification was not stored because the phone is woken for another one."""
        rows = self._notifications.values()
        is_stored = any((row.dedup_key or "").startswith(name) for row in rows)
        return not is_stored and any(
            row.installation_id == installation_id and row.state == "delivered" for row in rows
        )

    def _is_coalesced(self, name: str) -> bool:
        """Return whether a later push to the same address woke the phone for this notification."""
        rows = self._notifications.values()
        own = [row for row in rows if (row.dedup_key or "").startswith(name) and row.state == "coalesced"]
        self.counts["coalesced"] += len(own)
        return any(
            row.route_id == each.route_id and row.id > each.id and row.state in {"delivered", "unconfirmed"}
            for each in own
            for row in rows
        )


def _name(asked: Asked, notification: PushNotification) -> str:
    return dedup_key(asked.message_id, notification).hex()[:32]


def _check_request(_pk: int, state: str, has_address: bool, replies: int, without_report: int) -> None:
    if state == "waiting":
        _hold(has_address, "a request waits that cannot be answered")
    else:
        _hold(not without_report, "answered without a report")
        _hold(not has_address, "the address of an answered request is kept")
        _hold(replies > 0, "an answer is lost")


def _hold(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise Broken(otherwise)
