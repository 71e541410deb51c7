"""Recording what the gateway said: attempts, routes, channels and notifications, in one transaction."""

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from time import monotonic, sleep

import structlog
from django.db import InterfaceError, OperationalError, close_old_connections, transaction
from django.db.models import QuerySet, Value
from django.db.models.functions import Coalesce
from django.utils import timezone

from measuring.batches import count, observe
from notifications import breakers, channels, disabling
from notifications.delivery.claim import Claim
from notifications.delivery.doubts import find_left_alone
from notifications.delivery.rows import AttemptResult, complete_attempts
from notifications.delivery.sending import Done
from notifications.messages import DRY_RUN, ChannelKey, Outcome, Result, platform
from notifications.metrics import ATTEMPTS, GATEWAY_SECONDS
from notifications.models import Notification
from notifications.policy import may_help_to_drop_payload, retry_at, retry_base_seconds, retry_max_seconds
from notifications.transitions import OVER, move

log = structlog.get_logger(__name__)
State = Notification.State

FIRST_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 5.0
FINISHED_BY = {
    Outcome.DELIVERED: State.DELIVERED,
    Outcome.DEAD: State.DEAD_TOKEN,
    Outcome.PAYLOAD: State.UNDELIVERABLE,
}
# What the sender of the others is told: success.
REPORTS_BY = {Outcome.DEAD: Notification.Reports.NOT_REGISTERED}


def record_however_long_it_takes(results: Sequence[Done], *, patience: timedelta) -> None:
    """What was sent is known nowhere but here: not recorded, it would be taken for lost and sent a second time."""
    deadline, pause = monotonic() + patience.total_seconds(), FIRST_PAUSE_SECONDS
    while True:
        try:
            return record(results, now=timezone.now())
        except (OperationalError, InterfaceError) as error:
            if monotonic() + pause > deadline:
                raise
            log.warning("results_not_recorded", count=len(results), error=type(error).__name__)
        sleep(pause)
        pause = min(pause * 2, MAX_PAUSE_SECONDS)
        close_old_connections()


def record(results: Sequence[Done], *, now: datetime) -> None:
    """Write what the gateway said. What ends a notification ends it, whoever holds it by now; anything else changes
    it only while its attempt holds it, for once the lease was lost the next attempt decides.
    """
    _record(results, now=now)
    # Not before the commit: closing locks the channel and then all that is parked for it, which goes badly with the
    # routes and notifications that are locked here. A breaker that stays open after a crash gets its next probe.
    for channel in sorted({claim.channel for claim, result in results if claim.is_probe and _proves(result)}):
        channels.close_breaker(channel, now=now)


def _proves(result: Result) -> bool:
    """A dry run proves nothing about Apple and Google."""
    return result.outcome is Outcome.DELIVERED and result.code != DRY_RUN


@transaction.atomic
def _record(results: Sequence[Done], *, now: datetime) -> None:
    complete_attempts(
        [AttemptResult(c.attempt_id, r.outcome.value, r.code, r.latency_ms, r.is_guarded) for c, r in results]
    )
    known = channels.find({claim.channel for claim, _ in results})
    doubted = breakers.judge([(claim.channel, result) for claim, result in results], known, now=now)
    believed = [(claim, _believe(claim.channel, result, doubted)) for claim, result in results]
    channels.note_success({claim.channel for claim, result in believed if _proves(result)}, known, now=now)
    # Routes before notifications, as in unregistering: the other way round they would dead-lock.
    _note_routes(believed, known, now=now)
    _finish_or_try_again(believed, now=now)
    _measure(results, known)


def _believe(channel: ChannelKey, result: Result, doubted: set[ChannelKey]) -> Result:
    """While tokens seem to die because of the set-up, such a verdict is about the set-up."""
    is_doubtful = result.outcome is Outcome.DEAD and result.is_guarded and channel in doubted
    return replace(result, outcome=Outcome.CONFIG) if is_doubtful else result


def _note_routes(results: Sequence[Done], known: channels.Known, *, now: datetime) -> None:
    failed = [claim for claim, r in results if r.outcome is Outcome.TRANSIENT]
    dead = [(claim, r.code) for claim, r in results if r.outcome is Outcome.DEAD]
    succeeded_ids = {claim.route_id for claim, r in results if r.outcome is Outcome.DELIVERED}
    failed_ids = {claim.route_id for claim in failed} | {claim.route_id for claim, _ in dead}
    disabling.note_success(disabling.lock_in_order(succeeded_ids, failed_ids, now=now), now=now)
    for channel in sorted({claim.channel for claim in failed}):
        row = known.get(channel)
        disabling.note_failure(
            [claim.route_id for claim in failed if claim.channel == channel],
            channel_success_at=row.last_success_at if row else None,
            now=now,
        )
    for claim, code in dead:
        disabling.disable_dead(claim.route_id, claim.route_generation, code, now=now)


def _finish_or_try_again(results: Sequence[Done], *, now: datetime) -> None:
    smaller = [(c, r) for c, r in results if r.outcome is Outcome.PAYLOAD and may_help_to_drop_payload(c.push, r.code)]
    for claim, _ in smaller:
        _try_without_payload(claim, now=now)
    kept = {claim.attempt_id for claim, _ in smaller}
    for outcome, state in FINISHED_BY.items():
        over = [c.notification_id for c, r in results if r.outcome is outcome and c.attempt_id not in kept]
        if over:
            # In the same write as the end, unless the sender was told before it.
            report = Coalesce("report", Value(REPORTS_BY.get(outcome, Notification.Reports.SUCCESS)))
            move(Notification.objects.filter(pk__in=over), state, finished_at=now, report=report, **OVER)
    ambiguous = [claim for claim, result in results if result.outcome is Outcome.AMBIGUOUS]
    left_alone = find_left_alone({claim.notification_id: claim.ambiguous_count + 1 for claim in ambiguous})
    for claim, result in results:
        if result.outcome is Outcome.AMBIGUOUS and claim.notification_id in left_alone:
            move(_held(claim), State.UNCONFIRMED, finished_at=now, **OVER)
        elif result.outcome not in FINISHED_BY:
            _schedule_again(claim, result, now=now)


def _measure(results: Sequence[Done], known: channels.Known) -> None:
    count(ATTEMPTS, ((r.outcome, platform(c.channel.token_type), _app(c.channel, known)) for c, r in results))
    for token_type in {claim.channel.token_type for claim, _ in results}:
        sent = (r.latency_ms / 1000 for c, r in results if c.channel.token_type == token_type and r.latency_ms)
        observe(GATEWAY_SECONDS, sent, platform(token_type))


def _app(channel: ChannelKey, known: channels.Known) -> str:
    """Clients choose the app topic, so one is named only once something was delivered to it."""
    row = known.get(channel)
    return channel.apn_topic if not channel.apn_topic or (row and row.last_success_at) else "other"


def _held(claim: Claim) -> QuerySet[Notification]:
    """Only while this attempt holds it: once the lease was lost, the next attempt decides."""
    return Notification.objects.filter(
        pk=claim.notification_id, state=State.IN_FLIGHT, attempt_count=claim.push.attempt_number
    )


def _try_without_payload(claim: Claim, *, now: datetime) -> None:
    move(
        _held(claim),
        State.RETRYING,
        payload_dropped=True,
        message=None,
        next_attempt_at=now,
        enqueued_at=None,
        lease_until=None,
    )


def _schedule_again(claim: Claim, result: Result, *, now: datetime) -> None:
    is_ambiguous = result.outcome is Outcome.AMBIGUOUS
    next_attempt_at = retry_at(
        now,
        claim.push.attempt_number,
        jitter=random.random(),  # noqa: S311 - spreads load, guards nothing
        base_seconds=retry_base_seconds(result),
        max_seconds=retry_max_seconds(result),
        after_seconds=result.retry_after_seconds,
    )
    if next_attempt_at >= claim.expires_at:
        move(_held(claim), State.EXPIRED, finished_at=now, **OVER)
        return
    move(
        _held(claim),
        State.AMBIGUOUS if is_ambiguous else State.RETRYING,
        ambiguous_count=claim.ambiguous_count + is_ambiguous,
        next_attempt_at=next_attempt_at,
        enqueued_at=None,
        lease_until=None,
    )
