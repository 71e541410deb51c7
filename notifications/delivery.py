"""Delivering notifications: claim them and write the attempts, send without holding anything open, record the results.

Also what belongs to it over time: which are due, what a crash left behind, which requests can be answered now.
"""

import asyncio
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from queue import Empty, SimpleQueue
from time import monotonic, sleep

import structlog
from django.db import InterfaceError, OperationalError, close_old_connections, transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.utils import timezone

from notifications.connections import submit
from notifications.gateways.interface import Gateway
from notifications.messages import Answer, Outcome, Push, Result
from notifications.models import Attempt, Notification, NotificationRequest
from notifications.policy import CONFIG_RETRY_SECONDS, FIRST_RETRY_SECONDS, retry_at
from notifications.reports import load_reports
from registrations.encryption import DecryptionError, Purpose
from registrations.keyring import keyring
from registrations.models import Registration, RegistrationEvent, Route

log = structlog.get_logger(__name__)
State = Notification.State

# How many pushes one task sends at once. Also how many may be ambiguous when a worker is killed.
BATCH_SIZE = 64
# Results that come in within this time are recorded together.
RECORDING_PAUSE_SECONDS = 0.01
MAX_AMBIGUOUS_ATTEMPTS = 2
USABLE_PART_OF_LEASE = 0.9  # the rest is for recording
FIRST_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 5.0
DUE = [State.PENDING, State.RETRYING, State.AMBIGUOUS]
FINISHED_BY = {
    Outcome.DELIVERED: State.DELIVERED,
    Outcome.DEAD: State.DEAD_TOKEN,
    Outcome.PAYLOAD: State.UNDELIVERABLE,
}


@dataclass(frozen=True, slots=True)
class Claim:
    """A notification that this worker alone sends, until its lease ends."""

    notification_id: int
    request_id: int
    route_id: int
    route_generation: int
    attempt_id: int
    ambiguous_count: int
    expires_at: datetime
    push: Push


def deliver(notification_ids: Sequence[int], gateway: Gateway, *, lease: timedelta) -> Iterator[set[int]]:
    """Try each notification that is due once, and yield the requests concerned as results come in.

    ``lease`` is longer than any try at the gateway takes: whoever holds one that ran out is dead.
    Safe to run twice: what another worker has claimed, or what is over, is left alone.
    """
    claims = claim(notification_ids, gateway_name=gateway.name, now=timezone.now(), lease=lease)
    for results in _send(claims, gateway, lease):
        _record_however_long_it_takes(results, patience=lease)
        yield {done.request_id for done, _ in results}


def _record_however_long_it_takes(results: Sequence[tuple[Claim, Result]], *, patience: timedelta) -> None:
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


@transaction.atomic
def claim(notification_ids: Sequence[int], *, gateway_name: str, now: datetime, lease: timedelta) -> list[Claim]:
    """Take the notifications that are due, and write their attempts before anything is sent."""
    due = list(
        Notification.objects.select_for_update(of=("self",), skip_locked=True)
        .select_related("route")
        .filter(pk__in=notification_ids, state__in=DUE)
        # The first attempt is due at once, also where the clock is behind that of the worker which accepted it.
        .filter(Q(state=State.PENDING) | Q(next_attempt_at__lte=now))
        .order_by("pk")
    )
    _finish([n.pk for n in due if n.route is None], State.WITHDRAWN, now=now)
    _finish([n.pk for n in due if n.route and n.route.state == Route.State.DISABLED], State.DEAD_TOKEN, now=now)
    active = [n for n in due if n.route and n.route.state == Route.State.ACTIVE]
    _finish([n.pk for n in active if n.expires_at <= now], State.EXPIRED, now=now)
    tokens = {n.pk: _device_token(n) for n in active if n.expires_at > now}
    _postpone([pk for pk, token in tokens.items() if token is None], now=now)
    taken = [n for n in active if tokens.get(n.pk) is not None]
    Notification.objects.filter(pk__in=[n.pk for n in taken]).update(
        state=State.IN_FLIGHT, lease_until=now + lease, attempt_count=F("attempt_count") + 1, next_attempt_at=None
    )
    attempts = Attempt.objects.bulk_create(_new_attempt(n, gateway_name, now=now) for n in taken)
    return [_claim(n, attempt, tokens[n.pk] or "") for n, attempt in zip(taken, attempts, strict=True)]


def _device_token(notification: Notification) -> str | None:
    """None when its key was taken out of the settings: nobody else's notification may wait for an operator."""
    assert notification.route is not None  # noqa: S101 - claim() asks for those with a route
    try:
        return keyring().decrypt(Purpose.DEVICE_TOKEN, notification.route.device_token_encrypted).decode()
    except DecryptionError:
        log.error("device_token_not_decryptable", route_id=notification.route_id)  # noqa: TRY400 - nothing to trace
        return None


def _postpone(notification_ids: Sequence[int], *, now: datetime) -> None:
    if notification_ids:
        Notification.objects.filter(pk__in=notification_ids).update(
            state=State.RETRYING, next_attempt_at=now + timedelta(seconds=CONFIG_RETRY_SECONDS), enqueued_at=None
        )


def _new_attempt(notification: Notification, gateway_name: str, *, now: datetime) -> Attempt:
    assert notification.route is not None  # noqa: S101 - claim() took only those with a route
    return Attempt(
        notification=notification,
        number=notification.attempt_count + 1,
        gateway=gateway_name,
        token_type=notification.route.token_type,
        apn_topic=notification.route.apn_topic,
        started_at=now,
    )


def _claim(notification: Notification, attempt: Attempt, device_token: str) -> Claim:
    route = notification.route
    assert route is not None  # noqa: S101 - claim() took only those with a route
    push = Push(
        notification_id=notification.pk,
        attempt_number=attempt.number,
        token_type=route.token_type,
        device_token=device_token,
        apn_topic=route.apn_topic,
        type=notification.type,
        public_key_hash=bytes(notification.public_key_hash),
        chat_id=bytes(notification.chat_id or b""),
        message=bytes(notification.message or b""),
        collapse_id=bytes(notification.dedup_key or notification.pk.to_bytes(16)).hex()[:32],
    )
    return Claim(
        notification_id=notification.pk,
        request_id=notification.request_id,
        route_id=route.pk,
        route_generation=route.generation,
        attempt_id=attempt.pk,
        ambiguous_count=notification.ambiguous_count,
        expires_at=notification.expires_at,
        push=push,
    )


def _send(claims: Sequence[Claim], gateway: Gateway, lease: timedelta) -> Iterator[list[tuple[Claim, Result]]]:
    """Send all at once, and hand out the results in the order they come, in handfuls worth a write."""
    results: SimpleQueue[tuple[Claim, Result]] = SimpleQueue()

    async def send_one(claim: Claim) -> None:
        try:
            # The client's own timeout starts over with every byte that trickles in.
            result = await asyncio.wait_for(gateway.send(claim.push), lease.total_seconds() * USABLE_PART_OF_LEASE)
        except TimeoutError:
            result = Result(Outcome.AMBIGUOUS, "timeout")
        except Exception as error:  # noqa: BLE001 - a fault of ours must not leave the task waiting for a result
            log.warning("gateway_failed", gateway=gateway.name, error=type(error).__name__)
            result = Result(Outcome.AMBIGUOUS, "gateway_failed")
        results.put((claim, result))

    async def send_all() -> None:
        await asyncio.gather(*map(send_one, claims))

    sending = submit(send_all())
    outstanding = len(claims)
    while outstanding:
        handful = _take_handful(results, outstanding, lease)
        outstanding -= len(handful)
        yield handful
    sending.result()


def _take_handful(
    results: SimpleQueue[tuple[Claim, Result]], outstanding: int, lease: timedelta
) -> list[tuple[Claim, Result]]:
    handful = [results.get(timeout=lease.total_seconds())]
    deadline = monotonic() + RECORDING_PAUSE_SECONDS
    while len(handful) < outstanding:
        try:
            handful.append(results.get(timeout=max(deadline - monotonic(), 0)))
        except Empty:
            break
    return handful


@transaction.atomic
def record(results: Sequence[tuple[Claim, Result]], *, now: datetime) -> None:
    """Write what the gateway said. A notification whose lease was lost meanwhile keeps what its new holder decides."""
    _complete_attempts(results)
    # Routes before notifications, as in unregistering: the other way round they would dead-lock.
    _note_success([claim.route_id for claim, r in results if r.outcome is Outcome.DELIVERED], now=now)
    _note_failure([claim.route_id for claim, r in results if r.outcome is Outcome.TRANSIENT], now=now)
    for claimed, result in results:
        if result.outcome is Outcome.DEAD:
            _disable_route(claimed, result.code, now=now)
    for outcome, state in FINISHED_BY.items():
        _finish([claim.notification_id for claim, r in results if r.outcome is outcome], state, now=now)
    for claimed, result in results:
        if result.outcome not in FINISHED_BY:
            _schedule_again(claimed, result, now=now)


def _complete_attempts(results: Iterable[tuple[Claim, Result]]) -> None:
    """One upsert on rows that exist: a statement for all, where bulk_update would build a CASE per column."""
    Attempt.objects.bulk_create(
        [
            Attempt(
                pk=claim.attempt_id,
                notification_id=claim.notification_id,
                number=claim.push.attempt_number,
                started_at=claim.expires_at,  # never written: the row exists
                token_type=claim.push.token_type,
                outcome=result.outcome.value,
                code=result.code,
                latency_ms=result.latency_ms,
            )
            for claim, result in results
        ],
        update_conflicts=True,
        unique_fields=["id"],
        update_fields=["outcome", "code", "latency_ms"],
    )


def _finish(notification_ids: Sequence[int], state: Notification.State, *, now: datetime) -> None:
    if notification_ids:
        _end(Notification.objects.filter(pk__in=notification_ids, state__in=[*DUE, State.IN_FLIGHT]), state, now=now)


def _end(notifications: QuerySet[Notification], state: Notification.State, *, now: datetime) -> None:
    """Close notifications for good, and drop what was meant for the device."""
    notifications.update(
        state=state, finished_at=now, lease_until=None, next_attempt_at=None, chat_id=None, message=None
    )


def _schedule_again(claimed: Claim, result: Result, *, now: datetime) -> None:
    is_ambiguous = result.outcome is Outcome.AMBIGUOUS
    # Only while this attempt holds it: once the lease was lost, the next attempt decides.
    held = Notification.objects.filter(
        pk=claimed.notification_id, state=State.IN_FLIGHT, attempt_count=claimed.push.attempt_number
    )
    if is_ambiguous and claimed.ambiguous_count + 1 >= MAX_AMBIGUOUS_ATTEMPTS:
        _end(held, State.UNCONFIRMED, now=now)
        return
    next_attempt_at = retry_at(
        now,
        claimed.push.attempt_number,
        jitter=random.random(),  # noqa: S311 - spreads load, guards nothing
        base_seconds=CONFIG_RETRY_SECONDS if result.outcome is Outcome.CONFIG else FIRST_RETRY_SECONDS,
        after_seconds=result.retry_after_seconds,
    )
    if next_attempt_at >= claimed.expires_at:
        _end(held, State.EXPIRED, now=now)
        return
    held.update(
        state=State.AMBIGUOUS if is_ambiguous else State.RETRYING,
        ambiguous_count=claimed.ambiguous_count + is_ambiguous,
        next_attempt_at=next_attempt_at,
        enqueued_at=None,
        lease_until=None,
    )


def _note_success(route_ids: Iterable[int], *, now: datetime) -> None:
    """At most one write per route and hour: nobody needs it more exactly, and a busy device is pushed to often."""
    Route.objects.filter(pk__in=set(route_ids)).filter(
        Q(failing_since__isnull=False)
        | Q(last_success_at__isnull=True)
        | Q(last_success_at__lt=now - timedelta(hours=1))
    ).update(last_success_at=now, failing_since=None)


def _note_failure(route_ids: Iterable[int], *, now: datetime) -> None:
    Route.objects.filter(pk__in=set(route_ids), failing_since__isnull=True).update(failing_since=now)


def _disable_route(claimed: Claim, code: str, *, now: datetime) -> None:
    """Only if the address is still the one that was sent to: the client may have registered a new token meanwhile."""
    disabled = Route.objects.filter(
        pk=claimed.route_id, generation=claimed.route_generation, state=Route.State.ACTIVE
    ).update(state=Route.State.DISABLED, disabled_reason=code, disabled_at=now)
    if not disabled:
        return
    registration = Registration.objects.filter(route=claimed.route_id).only("pseudonym").first()
    if registration and registration.pseudonym:
        RegistrationEvent.objects.create(
            kind=RegistrationEvent.Kind.TOKEN_DIED,
            pseudonym=registration.pseudonym,
            token_type=claimed.push.token_type,
            apn_topic=claimed.push.apn_topic,
            at=now,
        )


def settle(request_ids: Iterable[int], *, now: datetime) -> list[Answer]:
    """Fix the reports of requests whose notifications were all tried once, or whose reply is due, and return them.

    Each request is answered once: whoever changes its state takes the answer.
    """
    with transaction.atomic():
        requests = list(
            NotificationRequest.objects.select_for_update(skip_locked=True)
            .filter(pk__in=request_ids, state=NotificationRequest.State.WAITING)
            .filter(~Exists(_untried()) | Q(reply_due_at__lte=now))
            .order_by("pk")
        )
        ids = [request.pk for request in requests]
        _fix_reports(ids)
        reports = load_reports(ids)
        NotificationRequest.objects.filter(pk__in=ids).update(
            state=NotificationRequest.State.ANSWERED, answered_at=now, reply_to=None
        )
    return [
        Answer(bytes(r.envelope_hash), bytes(r.reply_to or b""), bytes(r.message_id), tuple(reports[r.pk]))
        for r in requests
    ]


def _untried() -> QuerySet[Notification]:
    return Notification.objects.filter(
        Q(state=State.PENDING) | Q(state=State.IN_FLIGHT, attempt_count=1), request=OuterRef("pk")
    )


def _fix_reports(request_ids: Sequence[int]) -> None:
    """A dead token is told; whatever is delivered, still tried, or unknown counts as success."""
    unanswered = Notification.objects.filter(request__in=request_ids, report__isnull=True)
    unanswered.filter(state=State.DEAD_TOKEN).update(report=Notification.Reports.NOT_REGISTERED)
    unanswered.update(report=Notification.Reports.SUCCESS)


def overdue_request_ids(*, now: datetime, limit: int) -> list[int]:
    """Requests whose reply is late: a worker died, or nobody tried their notifications in time."""
    waiting = NotificationRequest.objects.filter(state=NotificationRequest.State.WAITING, reply_due_at__lte=now)
    return list(waiting.order_by("reply_due_at").values_list("pk", flat=True)[:limit])


def hand_out_due(*, now: datetime, limit: int, patience: timedelta) -> list[int]:
    """Notifications to put into the queue now: retries that are due, and any whose queue entry seems lost because it is
    older than ``patience``. Too little of that costs an empty task, nothing else.
    """
    due = Notification.objects.filter(
        Q(enqueued_at__isnull=True) | Q(enqueued_at__lte=now - patience), state__in=DUE, next_attempt_at__lte=now
    )
    ids = list(due.order_by("next_attempt_at").values_list("pk", flat=True)[:limit])
    Notification.objects.filter(pk__in=ids).update(enqueued_at=now)
    return ids


def take_up_lost(*, now: datetime) -> int:
    """Notifications that a killed worker held: its push may have left, so they are ambiguous."""
    lost = Notification.objects.filter(state=State.IN_FLIGHT, lease_until__lte=now)
    with transaction.atomic():
        locked = list(lost.select_for_update(skip_locked=True).order_by("pk").values_list("pk", "ambiguous_count"))
        twice = [pk for pk, count in locked if count + 1 >= MAX_AMBIGUOUS_ATTEMPTS]
        again = [pk for pk, count in locked if count + 1 < MAX_AMBIGUOUS_ATTEMPTS]
        Attempt.objects.filter(notification__in=twice + again, outcome__isnull=True).update(
            outcome=Outcome.AMBIGUOUS.value, code="worker_lost"
        )
        _finish(twice, State.UNCONFIRMED, now=now)
        Notification.objects.filter(pk__in=again).update(
            state=State.AMBIGUOUS,
            ambiguous_count=F("ambiguous_count") + 1,
            next_attempt_at=now,
            enqueued_at=None,
            lease_until=None,
        )
    return len(locked)
