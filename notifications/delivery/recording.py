"""Recording of the gateways' results: attempts, routes, apps, halts and notifications.

A result that ends a notification ends it, whichever attempt it came from. Any other result changes the notification
only while its attempt holds it: once another worker has taken it over, the next attempt decides.

A row is identified by its id and its collapse id. After a fail-over to a standby that lacked the last rows, PostgreSQL
gives their ids to other rows, while the results are still in memory.
"""

import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import LiteralString, NamedTuple

import structlog

from kit.batches.batch import LONG_AGO
from kit.db.base import array_value, write, write_rows
from kit.db.clock import day_of, with_days
from kit.telemetry import count, count_returned, observe
from notifications.messages import AppKey, Outcome, Result
from notifications.metrics import ATTEMPTS, DISPATCH_SECONDS, FINISHED, GATEWAY_SECONDS
from notifications.models import Notification
from notifications.policy import (
    UNPROVEN_FAILURES,
    is_answer,
    is_contact,
    is_failure_of_push,
    may_help_to_drop_payload,
    retry_seconds,
)
from notifications.queues import breakers, halts, queues
from notifications.queues.claim import Claim, Done
from notifications.queues.ending import ending
from notifications.queues.halts import TRIED_FOR, Reach
from notifications.queues.queues import Queues
from registrations import lookup
from registrations.messages import platform_of
from registrations.models import Route

log = structlog.get_logger(__name__)
State = Notification.State

FINISHED_BY = {
    Outcome.DELIVERED: State.DELIVERED,
    Outcome.DEAD: State.DEAD_TOKEN,
    Outcome.PAYLOAD: State.UNDELIVERABLE,
}


class Change(NamedTuple):
    """What a result changes of its notification, and what its sender is told."""

    claim: Claim
    state: str
    due_at: datetime | None = None
    is_payload_dropped: bool = False
    is_given_up: bool = False  # the result alone ends nothing: see `UNPROVEN_FAILURES`

    @property
    def is_end(self) -> bool:
        return self.due_at is None

    @property
    def is_token_dead(self) -> bool:
        return self.state == State.DEAD_TOKEN

    @property
    def ambiguous_count(self) -> int:
        return self.claim.ambiguous_count + (self.state == State.AMBIGUOUS)


def record(results: Sequence[Done], *, reach: Reach, now: datetime) -> list[Change]:
    """Write the gateways' results in the transaction of a batch, and return what they mean for the senders.

    ``reach`` is what this process knows of its way to the gateways. The caller calls `end_halts` after the commit.
    """
    known = queues.load()
    proven = {c.route_id for c, r in results if c.is_route_proven or r.outcome is Outcome.DELIVERED}
    failed = _find_failed(results, proven, known, now=now)
    _write_attempts(results, failed, now=now)
    _note_reach(results, reach, known, now=now)
    breakers.trip_what_delivers_nothing(results, known, now=now)
    distrusted = breakers.find_distrusted(results, known, now=now)
    believed = [(claim, _believe(claim.app, result, distrusted)) for claim, result in results]
    delivered = [claim for claim, result in believed if _proves(result)]
    queues.note_success({claim.app for claim in delivered}, known, now=now)
    queues.note_delivery({claim.queue for claim in delivered}, known, now=now)
    # Routes are written before notifications, as in unregistering. The other order would dead-lock.
    _note_routes(believed, known, now=now)
    _bring_forward(believed, now=now)
    renewed = _find_renewed(believed)
    given_up = {claim.attempt_id for claim, _ in results if claim.failure_count + 1 >= UNPROVEN_FAILURES} & failed
    changes = [
        _give_up(claim) if claim.attempt_id in given_up else _change(claim, result, proven, renewed, now=now)
        for claim, result in believed
    ]
    _finish([change for change in changes if change.is_end], now=now)
    begun = {claim.attempt_id for claim, result in results if result.began_at}
    _schedule([change for change in changes if not change.is_end], begun, failed)
    _measure(results, known)
    return changes


def end_halts(results: Sequence[Done], *, now: datetime) -> None:
    """End the trips of apps whose probe Apple or Google answered, and the halts of gateways that a probe reached.

    It runs after the commit of the results, so that no session waits for a batch because of these rows. A halt that
    stays after a crash gets its next probe.
    """
    probes = [(claim, result) for claim, result in results if claim.is_probe]
    for app in sorted({claim.app for claim, result in probes if is_answer(result)}):
        halts.end(halts.Kind.TRIPPED, app, now=now)
    for gateway in sorted({claim.gateway for claim, result in probes if is_contact(result)}):
        halts.end(halts.Kind.UNREACHABLE, gateway, now=now)


def _find_failed(results: Sequence[Done], proven: Collection[int], known: Queues, *, now: datetime) -> set[int]:
    """Return the attempts that failed because of their addresses, as others were delivered since the attempt before.

    The failure of a probe is one of its app or gateway. A first attempt fails so where the gateway ever delivered
    something on the platform.
    """
    delivering = {claim.queue[:2] for claim, result in results if _proves(result)}
    return {
        claim.attempt_id
        for claim, result in results
        if is_failure_of_push(_believe(claim.app, result, known.distrusted))
        if not claim.is_probe and claim.route_id not in proven
        if (at := now if claim.queue[:2] in delivering else known.delivered_at(*claim.queue[:2]))
        if at >= (claim.tried_at or LONG_AGO)
    }


def _note_reach(results: Sequence[Done], reach: Reach, known: Queues, *, now: datetime) -> None:
    """Note which gateways this process reaches, and halt those that nobody in the fleet reached since it tries."""
    reached = {claim.gateway for claim, result in results if is_contact(result)}
    reach.note_reached(reached)
    for gateway in sorted({claim.gateway for claim, result in results if result.is_unreached} - reached):
        since = reach.note_unreached(gateway, now=now)
        if since > now - TRIED_FOR or gateway in known.unreachable:
            continue
        if halts.has_contact(gateway, since):
            reach.note_alone(gateway, now=now)
        else:
            halts.begin(halts.Kind.UNREACHABLE, gateway, now=now)


def _proves(result: Result) -> bool:
    """Return whether a result proves that the app works. A dry run proves nothing about Apple and Google."""
    return result.outcome is Outcome.DELIVERED and not result.is_dry_run


def _believe(app: AppKey, result: Result, distrusted: Collection[AppKey]) -> Result:
    """Return the result to act on. While an app's deaths are distrusted, a dead token counts as a wrong set-up."""
    is_distrusted = breakers.is_guarded_death(result) and app in distrusted
    return replace(result, outcome=Outcome.CONFIG) if is_distrusted else result


_IDS = "%(ids)b::bigint[]"
# A late result replaces the attempt that was written when its worker seemed to be dead.
_WRITE_ATTEMPTS: LiteralString = f"""
    INSERT INTO notifications_endedattempt
        (id, notification_id, number, gateway, token_type, app_topic, is_probe, started_at, began_at, ended_at,
         waited_ms, latency_ms, outcome, code, error, is_guarded, is_counted, late_code)
    SELECT id, notification_id, number, gateway, token_type, app_topic, is_probe, started_at, began_at, ended_at,
           waited_ms, latency_ms, outcome, code, error, is_guarded, is_counted, coalesce(late_code, '')
    FROM (
        SELECT new.*, (
            SELECT CASE WHEN n.attempt_id = new.id THEN n.late_code ELSE '' END
            FROM notifications_opennotification AS n
            WHERE n.id = new.notification_id AND coalesce(n.collapse_id, '') = new.collapse_id
        ) AS late_code
        FROM unnest({_IDS}, %(notifications)b::bigint[], %(collapse_ids)b::bytea[], %(numbers)b::integer[],
                    %(gateways)b::text[], %(token_types)b::smallint[], %(app_topics)b::text[], %(probes)b::boolean[],
                    %(started)b::timestamptz[], %(begun)b::timestamptz[], %(ended)b::timestamptz[],
                    %(waited)b::integer[], %(latencies)b::integer[], %(outcomes)b::text[], %(codes)b::text[],
                    %(errors)b::text[], %(guarded)b::boolean[], %(counted)b::boolean[])
            AS new (id, notification_id, collapse_id, number, gateway, token_type, app_topic, is_probe, started_at,
                    began_at, ended_at, waited_ms, latency_ms, outcome, code, error, is_guarded, is_counted)
    ) AS new
    WHERE late_code IS NOT NULL OR EXISTS (
        SELECT FROM notifications_endednotification AS n WHERE n.id = new.notification_id
            AND coalesce(n.collapse_id, '') = new.collapse_id AND n.ended_on IN ({{days}})
    )
    ON CONFLICT (id, started_at) DO UPDATE
    SET (began_at, ended_at, waited_ms, latency_ms, outcome, code, error, is_guarded, is_counted) = (excluded.began_at,
        excluded.ended_at, excluded.waited_ms, excluded.latency_ms, excluded.outcome, excluded.code, excluded.error,
        excluded.is_guarded, excluded.is_counted)
"""


def _write_attempts(results: Sequence[Done], failed: Collection[int], *, now: datetime) -> None:
    columns = (
        *("ids", "notifications", "collapse_ids", "numbers", "gateways", "token_types", "app_topics", "probes"),
        *("started", "begun", "ended", "waited", "latencies", "outcomes", "codes", "errors", "guarded", "counted"),
    )
    rows = [
        (
            *(c.attempt_id, c.notification_id, bytes.fromhex(c.collapse_id), c.attempt_number, c.gateway),
            *(*c.app, c.is_probe, c.started_at, r.began_at, r.ended_at, _waited_ms(c, r)),
            *(r.latency_ms, r.outcome.value, r.code, r.error, r.is_guarded, c.attempt_id in failed),
        )
        for c, r in results
    ]
    write_rows(with_days(_WRITE_ATTEMPTS, now), columns, rows)


def _waited_ms(claim: Claim, result: Result) -> int | None:
    """Return how long a notification waited for its first push, or None if this is no first push."""
    if claim.unsent_since is None or result.began_at is None:
        return None
    return max(0, round((result.began_at - claim.unsent_since) / timedelta(milliseconds=1)))


def _note_routes(results: Sequence[Done], known: Queues, *, now: datetime) -> None:
    """Write the changes of routes. A route that works without interruption needs no write."""
    failed = [claim for claim, r in results if r.outcome is Outcome.TRANSIENT]
    dead = [(claim, r.code) for claim, r in results if r.outcome is Outcome.DEAD]
    reached = {
        c.route_id: c.address_digest for c, r in results if r.outcome is Outcome.DELIVERED and not c.is_route_noted
    }
    failed_ids = {claim.route_id for claim in failed} | {claim.route_id for claim, _ in dead}
    if failed_ids:
        lookup.lock_in_order(reached.keys() | failed_ids)
    if reached:
        lookup.note_delivered(reached, now=now)
    for app in sorted({claim.app for claim in failed}):
        breakers.note_failure(
            [claim.route_id for claim in failed if claim.app == app],
            app_success_at=known.delivered.get(app),
            now=now,
        )
    for claim, code in dead:
        breakers.disable_dead(claim.route_id, claim.route_generation, claim.address_digest, code, now=now)


_BRING_FORWARD = f"""
    UPDATE notifications_opennotification SET due_at = %(now)s
    WHERE route_id = ANY (%(routes)b::bigint[]) AND state = '{State.RETRYING}'
        AND attempt_count > 0 AND due_at > %(now)s
"""


def _bring_forward(results: Sequence[Done], *, now: datetime) -> None:
    """Make retries due now for addresses that were just proven."""
    proven = {c.route_id for c, r in results if r.outcome is Outcome.DELIVERED and not c.is_route_proven}
    if proven:
        write(_BRING_FORWARD, {"now": now, "routes": list(proven)})


def _find_renewed(results: Sequence[Done]) -> set[int]:
    """Return the routes with a dead token that are active: the client registered again meanwhile."""
    dead = {claim.route_id for claim, result in results if result.outcome is Outcome.DEAD}
    active = Route.objects.filter(pk__in=dead, state=Route.State.ACTIVE)
    return set(active.values_list("pk", flat=True)) if dead else set()


def _give_up(claim: Claim) -> Change:
    """Return the end of a push that nothing but its own address stands against. One that may have arrived says so."""
    state = State.UNCONFIRMED if claim.ambiguous_count else State.UNDELIVERABLE
    return Change(claim, state, is_given_up=True)


def _change(
    claim: Claim, result: Result, proven: Collection[int], renewed: Collection[int], *, now: datetime
) -> Change:
    if result.outcome is Outcome.PAYLOAD and may_help_to_drop_payload(claim, result):
        return Change(claim, State.RETRYING, now, is_payload_dropped=True)
    if result.outcome is Outcome.DEAD and claim.route_id in renewed:
        return Change(claim, State.RETRYING, now)
    if result.outcome in FINISHED_BY:
        return Change(claim, FINISHED_BY[result.outcome])
    if result.is_unreached:
        return Change(claim, State.RETRYING, now)  # another process may reach the gateway
    is_ambiguous = result.outcome is Outcome.AMBIGUOUS
    # The failure of a probe is one of its app, so the pause of its push does not grow.
    number = claim.ambiguous_count + 1 if is_ambiguous else 1 if claim.is_probe else claim.attempt_number
    is_of_address = is_failure_of_push(result) and not claim.is_probe and claim.route_id not in proven
    pause = retry_seconds(
        result,
        number,
        jitter=random.random(),  # noqa: S311 - spreads load, guards nothing
        left_seconds=(claim.expires_at - now).total_seconds() if is_of_address else None,
    )
    due_at = max(now, min(now + timedelta(seconds=pause), claim.expires_at))  # `Expired` closes only what is due
    return Change(claim, State.AMBIGUOUS if is_ambiguous else State.RETRYING, due_at)


# A notification that another attempt ended meanwhile stays as it is.
_of = partial(array_value, _IDS, "n.id")
_HELD = f"""n.state = '{State.IN_FLIGHT}' AND n.attempt_count = {_of("numbers", "integer")}"""
_FINISH: LiteralString = ending(
    f"""n.id = ANY ({_IDS}) AND coalesce(n.collapse_id, '') = {_of("collapse_ids", "bytea")}
            AND n.state IN ('{State.IN_FLIGHT}', '{State.RETRYING}', '{State.AMBIGUOUS}')
            AND (NOT {_of("given_up", "boolean")} OR {_HELD})""",
    _of("states", "text"),
)


def _finish(changes: Sequence[Change], *, now: datetime) -> None:
    """Write the ends of notifications."""
    rows = [(*_key(change), change.is_given_up) for change in changes]
    for finished in write_rows(_FINISH, (*_KEY, "given_up"), rows, now=now, today=day_of(now)):
        count_returned(FINISHED, finished)


_SCHEDULE = f"""
    UPDATE notifications_opennotification AS n
    SET state = {_of("states", "text")}, ambiguous_count = {_of("ambiguous", "smallint")},
        failure_count = n.failure_count + {_of("failed", "boolean")}::int, due_at = {_of("due_at", "timestamptz")},
        unsent_since = CASE WHEN NOT {_of("begun", "boolean")} THEN n.unsent_since END,
        payload_dropped = n.payload_dropped OR {_of("dropped", "boolean")},
        message = CASE WHEN {_of("dropped", "boolean")} THEN NULL ELSE n.message END
    WHERE n.id = ANY ({_IDS}) AND coalesce(n.collapse_id, '') = {_of("collapse_ids", "bytea")}
        AND {_HELD}
"""


def _schedule(changes: Sequence[Change], begun: Collection[int], failed: Collection[int]) -> None:
    """Write the next attempts of notifications. ``begun`` are the attempts whose push has begun."""
    rows = [
        (*_key(c), c.ambiguous_count, pk in failed, c.due_at, c.is_payload_dropped, pk in begun)
        for c in changes
        for pk in [c.claim.attempt_id]
    ]
    write_rows(_SCHEDULE, (*_KEY, "ambiguous", "failed", "due_at", "dropped", "begun"), rows)


# Which row a change applies to, as in a claim of it, and its new state.
_KEY = ("ids", "collapse_ids", "numbers", "states")


def _key(change: Change) -> tuple[int, bytes, int, str]:
    claim = change.claim
    return claim.notification_id, bytes.fromhex(claim.collapse_id), claim.attempt_number, str(change.state)


def _measure(results: Sequence[Done], known: Queues) -> None:
    observe(DISPATCH_SECONDS, (waited / 1000 for c, r in results if (waited := _waited_ms(c, r)) is not None))
    count(ATTEMPTS, ((r.outcome, platform_of(c.app.token_type), _app(c.app, known)) for c, r in results))
    for token_type in {claim.app.token_type for claim, _ in results}:
        sent = (r.latency_ms / 1000 for c, r in results if c.app.token_type == token_type and r.latency_ms)
        observe(GATEWAY_SECONDS, sent, platform_of(token_type))


def _app(app: AppKey, known: Queues) -> str:
    """Return the label of an app. Clients choose the topic, so only apps with a delivery are named."""
    return app.app_topic if not app.app_topic or app in known.delivered else "other"
