"""Delivery: what is due is claimed and sent, what was sent is recorded, and a request is answered when it counts zero."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from typing import Any, LiteralString

from kit.batches.batch import Wakeup
from kit.batches.inflight import InFlight
from kit.db.clock import clock
from kit.db.statements import fetch, write_rows
from kit.metrics.batches import count
from notifications.messages import Answer, Outcome, PushNotification, Report, Result
from notifications.metrics import ATTEMPTS, FINISHED
from notifications.queues import breakers, halts, queues
from notifications.queues.concurrency import ConcurrencyLimits
from notifications.rules.deadlines import has_expired
from notifications.rules.policy import (
    WORKER_LOST,
    ambiguous_retry_at,
    is_answer,
    is_contact,
    may_help_to_drop_payload,
    retry_at,
    retry_base_seconds,
    retry_max_seconds,
)
from prototype.notification import NOTIFICATIONS, REQUESTS, Notification, Route_, _claim, known_queues
from prototype.work import Cursor, again, done, of, take
from registrations.routes import routes
from registrations.token_types import platform_of

ENDS = {Outcome.DELIVERED: "delivered", Outcome.DEAD: "dead_token", Outcome.PAYLOAD: "undeliverable"}
GATHERING_SECONDS, QUIET_SECONDS = 0.1, 0.3


class Sends(InFlight[Notification]):
    """The POSTs under way."""

    def __init__(
        self, gateway_for: Callable[[str], Any], limits: ConcurrencyLimits, wakeup: Wakeup, lease: timedelta
    ) -> None:
        super().__init__(wakeup, timeout_seconds=lease.total_seconds() * 0.9)
        self.gateway_for, self.limits, self.sent_at = gateway_for, limits, [float("-inf")] * 2

    def send(self, claimed: Sequence[Notification]) -> None:
        if claimed:
            self.sent_at = [self.sent_at[1], monotonic()]
            for name in {n.route.gateway for n in claimed}:
                self.gateway_for(name).refresh(now=clock.now())
            self.start([partial(self._push, n) for n in claimed])

    async def _push(self, n: Notification) -> Notification:
        began_at, started = clock.now(), monotonic()
        gateway = self.gateway_for(n.route.gateway)
        n.result = gateway.find_fault(n.push) or await gateway.send(n.push)
        object.__setattr__(n.result, "began_at", n.result.began_at or began_at)
        object.__setattr__(n.result, "ended_at", clock.now())
        is_delivered = n.result.outcome is Outcome.DELIVERED
        self.limits.complete(n.slot, monotonic() - started if is_delivered else float("inf"))
        return n


class Delivery:
    """The step of the table of notifications."""

    def __init__(self, sends: Sends, lease: timedelta, answered: Callable[[Sequence[Answer]], None]) -> None:
        self.sends, self._lease, self._answered = sends, lease, answered
        self._cursor, self._claimed, self._recorded, self._answers = Cursor(), list[Notification](), 0, list[Answer]()

    def due_at(self) -> float | None:
        sends = self.sends
        if not sends.has_results():
            return 0.0 if sends.limits.has_capacity_again() else None
        is_quiet = sends.are_all_done() and sends.sent_at[0] < monotonic() - QUIET_SECONDS
        return 0.0 if is_quiet else sends.first_result_at + GATHERING_SECONDS

    def work(self, limit: int, now: datetime, *, looks: bool) -> bool:
        results = self.sends.peek(limit) if (self.due_at() or 0.0) <= monotonic() else []
        looks = looks or self.sends.limits.has_capacity_again()
        known = known_queues().and_halted(self.sends.limits.reach.halts()) if results or looks else None
        self._answers = record(results, known, now) if results else []
        self._recorded = len(results)
        return looks and self._claim(limit, known, now)

    def _claim(self, limit: int, known: queues.Queues, now: datetime) -> bool:
        """Claim what is due. A row that another worker claimed and left has an ambiguous attempt more."""
        budgets = {each: self.sends.limits.backlog_budget(each) for each in known.open_ids if each} | {0: limit}
        found = [
            _read(row)
            for row in take(NOTIFICATIONS, self._cursor, budgets, limit, now=now, columns=_COLUMNS, joined=_ROUTE)
        ]
        counts = Counter(n.queue_id for n in found)
        self.sends.limits.note_crowded([each for each, room in budgets.items() if each and counts[each] >= room])
        lost = [n for n in found if n.claimed_at]
        for n in lost:
            n.result, n.ambiguous_count = Result(Outcome.AMBIGUOUS, WORKER_LOST, ended_at=now), n.ambiguous_count + 1
        _insert_attempts(lost)
        over = [(n, state) for n in found if (state := _end_without_attempt(n, now))]
        _end(over, now)
        for n in (alive := [n for n in found if not _end_without_attempt(n, now)]):
            n.claimed_at = n.slot = n.result = None
            _claim(n, known, self.sends.limits, self._lease, now)
        again(
            NOTIFICATIONS,
            _CLAIM,
            ("claimed", "attempts", "ambiguous", "queue"),
            [(n.id, n.due_at, n.claimed_at, n.attempt_count, n.ambiguous_count, n.queue_id) for n in alive],
        )
        self._claimed = [n for n in alive if n.slot]
        return len(found) == limit

    def committed(self) -> None:
        self.sends.recorded(self._recorded)
        self.sends.limits.keep()
        self.sends.send(self._claimed)
        self._answered(self._answers)
        self.rolled_back()

    def rolled_back(self) -> None:
        self.sends.limits.give_back()
        self._claimed, self._recorded, self._answers = [], 0, []

    def quarantine(self, error: Exception, now: datetime) -> None:
        self.sends.recorded(len(self.sends.peek(1)))


_COLUMNS: LiteralString = """
    n.id, n.request_id, n.position, n.public_key_hash, n.installation_id, n.type, n.chat_id, n.message, n.dedup_key,
    n.claimed_at, n.attempt_count, n.ambiguous_count, n.payload_dropped, n.expires_at, n.unsent_since,
    route.id, route.generation, route.token_type, route.app_topic, route.address_encrypted, route.gateway,
    route.address_digest, FALSE, route.is_proven, route.state, n.queue_id
"""
_ROUTE: LiteralString = "LEFT JOIN registrations_route AS route ON route.id = n.route_id"
_CLAIM: LiteralString = f"""
    claimed_at = {of("claimed", "timestamptz")}, attempt_count = {of("attempts", "smallint")},
    ambiguous_count = {of("ambiguous", "smallint")}, queue_id = {of("queue", "integer")}
"""


def _read(row: tuple[Any, ...]) -> Notification:
    asked = PushNotification(row[3], row[4], "", row[5], row[6] or b"", b"", row[7] or b"")
    route = Route_(*row[15:25]) if row[15] is not None else None
    return Notification(
        row[1],
        row[2],
        asked,
        route,
        id=row[0],
        dedup_key=row[8],
        claimed_at=row[9],
        attempt_count=row[10],
        ambiguous_count=row[11],
        is_payload_dropped=row[12],
        expires_at=row[13],
        unsent_since=row[14],
        queue_id=row[25],
    )


def _end_without_attempt(n: Notification, now: datetime) -> str:
    if n.route is None:
        return "withdrawn"
    if n.route.state == "disabled":
        return "dead_token"
    if has_expired(n.expires_at, now):
        return "unconfirmed" if n.ambiguous_count else "expired"
    return ""


# Recording ------------------------------------------------------------------------------------------------------------


def record(results: Sequence[Notification], known: queues.Queues, now: datetime) -> list[Answer]:
    """Write the results of attempts, and return the answers of requests that count no open push any more."""
    pairs = [(n, n.result) for n in results]
    breakers.trip_what_delivers_nothing(pairs, known, now=now)
    delivered = [n for n, result in pairs if result.outcome is Outcome.DELIVERED and not result.is_dry_run]
    queues.note_success({n.route.channel for n in delivered}, known, now=now)
    queues.note_delivery({n.queue for n in delivered}, known, now=now)
    if reached := {n.route.id: n.route.digest for n in delivered if not n.route.is_noted}:
        routes.note_delivered(reached, now=now)
    _insert_attempts(results)
    answers = _count([n for n in results if n.attempt_count == 1], now)
    _end([(n, ENDS[n.result.outcome]) for n in results if _is_end(n)], now)
    left = [n for n in results if not _is_end(n)]
    again(
        NOTIFICATIONS,
        _AGAIN,
        ("numbers", "ambiguous", "dropped"),
        [
            (
                n.id,
                _next_at(n, now),
                n.attempt_count,
                n.ambiguous_count + (n.result.outcome is Outcome.AMBIGUOUS),
                n.is_payload_dropped or n.result.outcome is Outcome.PAYLOAD,
            )
            for n in left
        ],
        only_if=f"n.attempt_count = {of('numbers', 'smallint')}",
    )
    count(ATTEMPTS, ((r.outcome, platform_of(n.channel.token_type), "") for n, r in pairs))
    return answers


def _is_end(n: Notification) -> bool:
    return n.result.outcome in ENDS and not (
        n.result.outcome is Outcome.PAYLOAD and may_help_to_drop_payload(n.push, n.result)
    )


_AGAIN: LiteralString = f"""
    claimed_at = NULL, ambiguous_count = {of("ambiguous", "smallint")}, payload_dropped = {of("dropped", "boolean")},
    message = CASE WHEN {of("dropped", "boolean")} THEN NULL ELSE n.message END
"""


def _next_at(n: Notification, now: datetime) -> datetime:
    result, jitter = n.result, random.random()
    if result.outcome is Outcome.PAYLOAD or result.is_unreached:
        return now
    if result.outcome is Outcome.AMBIGUOUS:
        after = result.retry_after_seconds
        return ambiguous_retry_at(now, n.ambiguous_count + 1, jitter=jitter, after_seconds=after)
    return retry_at(
        now,
        n.attempt_count,
        jitter=jitter,
        base_seconds=retry_base_seconds(result),
        max_seconds=retry_max_seconds(result),
        after_seconds=result.retry_after_seconds,
    )


_INSERT: LiteralString = """
    INSERT INTO proto_attempt (notification_id, number, gateway, token_type, app_topic, is_probe, started_at, began_at,
                               ended_at, waited_ms, latency_ms, outcome, code, error, is_guarded)
    SELECT * FROM unnest(
        %(id)b::bigint[], %(number)b::smallint[], %(gateway)b::text[], %(type)b::smallint[], %(topic)b::text[],
        %(probe)b::boolean[], %(started)b::timestamptz[], %(began)b::timestamptz[], %(ended)b::timestamptz[],
        %(waited)b::integer[], %(latency)b::integer[], %(outcome)b::text[], %(code)b::text[], %(error)b::text[],
        %(guarded)b::boolean[])
    ON CONFLICT (notification_id, number, started_at) DO UPDATE SET
        began_at = excluded.began_at, ended_at = excluded.ended_at, waited_ms = excluded.waited_ms,
        latency_ms = excluded.latency_ms, outcome = excluded.outcome, code = excluded.code, error = excluded.error
"""


def _insert_attempts(tried: Sequence[Notification]) -> None:
    if tried:
        names = (
            "id",
            "number",
            "gateway",
            "type",
            "topic",
            "probe",
            "started",
            "began",
            "ended",
            "waited",
            "latency",
            "outcome",
            "code",
            "error",
            "guarded",
        )
        rows = [
            (
                n.id,
                n.attempt_count,
                n.route.gateway,
                n.route.token_type,
                n.route.channel.app_topic,
                n.is_probe,
                n.claimed_at,
                r.began_at,
                r.ended_at,
                max(0, round((r.began_at - n.unsent_since).total_seconds() * 1000))
                if r.began_at and n.unsent_since
                else None,
                r.latency_ms,
                r.outcome.value,
                r.code,
                r.error,
                r.is_guarded,
            )
            for n in tried
            for r in [n.result]
        ]
        write_rows(_INSERT, names, rows)


def _end(ended: Sequence[tuple[Notification, str]], now: datetime) -> None:
    done(NOTIFICATIONS, [(n.id, n.attempt_count, state, now) for n, state in ended])
    count(FINISHED, ((state,) for _, state in ended))


# Answers --------------------------------------------------------------------------------------------------------------

_LOCK: LiteralString = """
    SELECT id, open_count, bridge, source_key, reply_address, message_id, reports FROM proto_request
    WHERE id = ANY (%(ids)b::bigint[]) ORDER BY id FOR NO KEY UPDATE
"""


def _count(first: Sequence[Notification], now: datetime) -> list[Answer]:
    """Note the first results of these notifications in their requests. Return the answers of those that are complete."""
    if not first:
        return []
    by_request: dict[int, list[Notification]] = {}
    for n in first:
        by_request.setdefault(n.request_id, []).append(n)
    complete, left, answers = [], [], []
    for pk, open_count, bridge, source_key, address, message_id, packed in fetch(_LOCK, {"ids": list(by_request)}):
        reports = bytearray(packed)
        for n in by_request[pk]:
            reports[n.position] = 1 + 3 * (n.result.outcome is Outcome.DEAD)
        if open_count > len(by_request[pk]):
            left.append((pk, open_count - len(by_request[pk]), bytes(reports)))
            continue
        complete.append((pk, bytes(reports), now))
        told = [
            Report(n.asked.public_key_hash, n.asked.installation_id, reports[n.position] == 1, reports[n.position] - 1)
            for n in by_request[pk]
        ]
        answers.append(Answer(bridge, source_key, address, message_id, tuple(told)))
    write_rows(_COUNTED, ("ids", "open", "reports"), left)
    done(REQUESTS, complete)
    return answers


_COUNTED: LiteralString = f"""
    UPDATE proto_request AS n SET open_count = {of("open", "smallint")}, reports = {of("reports", "bytea")}
    WHERE id = ANY (%(ids)b::bigint[])
"""


class Deadlines:
    """The step of the table of requests: an answer that is due is given with the results so far."""

    def __init__(self, answered: Callable[[Sequence[Answer]], None]) -> None:
        self._cursor, self._answered, self._answers = Cursor(), answered, list[Answer]()

    def due_at(self) -> float | None:
        return None

    def work(self, limit: int, now: datetime, *, looks: bool) -> bool:
        columns: LiteralString = "n.id, n.bridge, n.source_key, n.reply_address, n.message_id, n.reports"
        rows = take(REQUESTS, self._cursor, {0: limit}, limit, now=now, columns=columns) if looks else []
        done(REQUESTS, [(row[0], bytes(code or 1 for code in row[5]), now) for row in rows])
        self._answers = [Answer(*row[1:5], reports=()) for row in rows]
        return len(rows) == limit

    def committed(self) -> None:
        self._answered(self._answers)

    def rolled_back(self) -> None:
        self._answers = []

    def quarantine(self, error: Exception, now: datetime) -> None:
        """Nothing to set aside."""
