"""One run after the other: its row is the lock, whatever happens it is closed, and its traces are removed."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta

import structlog
from django.conf import settings
from django.db import DatabaseError, IntegrityError, InterfaceError, transaction
from django.utils import timezone
from redis.exceptions import RedisError

from registrations.messages import TokenType
from registrations.retention import delete_in_chunks
from waku_bridge.canary import board, traces
from waku_bridge.canary.chain import Chain, ChainBroken
from waku_bridge.canary.diagnosis import Diagnosis, Link
from waku_bridge.canary.line import TIMEOUT_SECONDS, Line
from waku_bridge.client import Address, Patience, RegisteringClient, SendingClient, new_identity, new_state
from waku_bridge.identity import canary_identity, server_identity
from waku_bridge.models import CanaryRun

log = structlog.get_logger(__name__)
State = CanaryRun.State

EXCHANGES = 4
# Its pushes are nobody's: no app has this topic, so that they share a channel with no real ones.
DRY_RUN_TOPIC = "canary"


def run() -> CanaryRun | None:
    """Make one round trip and record it; None when another is under way. Takes seconds, nearly all of them waiting."""
    row = _start(now=timezone.now())
    if row is None:
        return None
    try:
        return _carry_out(row)
    except BaseException:
        # A fault of ours, or the database is away: then the row waits until it is too old to be alive.
        row.state, row.finished_at = State.INTERRUPTED, timezone.now()
        with suppress(DatabaseError, InterfaceError):
            row.save(update_fields=["state", "finished_at"])
        raise


def _carry_out(row: CanaryRun) -> CanaryRun:
    started = time.thread_time()
    timings_ms: dict[Link, int] = {}
    try:
        traces.remove_traces(now=timezone.now())
        found = _go_round(row, timings_ms)
    finally:
        traces.remove_traces(now=timezone.now())
    row.work_ms = _ms(time.thread_time() - started)
    return _finish(row, found, timings_ms)


def _start(*, now: datetime) -> CanaryRun | None:
    with transaction.atomic():
        lost = CanaryRun.objects.filter(state=State.RUNNING, started_at__lt=now - _longest())
        lost.update(state=State.INTERRUPTED, finished_at=now)
    with suppress(IntegrityError), transaction.atomic():
        return CanaryRun.objects.create(started_at=now, is_dry_run=not settings.CANARY_DEVICE_TOKEN)
    return None


def _longest() -> timedelta:
    """Beyond any run that is still alive."""
    peers = len(settings.WAKU_NODES) + len(settings.WAKU_STORE_NODES)
    return timedelta(seconds=(EXCHANGES + 1) * (settings.CANARY_PATIENCE_SECONDS + 2 * peers * TIMEOUT_SECONDS) + 60)


def _go_round(row: CanaryRun, timings_ms: dict[Link, int]) -> Diagnosis | None:
    """What is broken, if anything is."""
    with Line(
        settings.WAKU_NODES,
        settings.WAKU_STORE_NODES,
        settings.WAKU_PUBSUB_TOPICS[0],
        lambda envelope_hash: traces.mark(envelope_hash, now=timezone.now()),
    ) as line:
        chain = Chain(line, settings.CANARY_PATIENCE_SECONDS, timings_ms)
        try:
            _take_every_link(chain, row)
        except ChainBroken as broken:
            return broken.diagnosis
    return None


def _take_every_link(chain: Chain, row: CanaryRun) -> None:
    client, server = canary_identity().pub33, server_identity().pub33
    # What is left of an earlier run is below any later time.
    state = new_state(server, random_bytes=os.urandom, version=int(time.time() * 1000))
    phone = RegisteringClient(canary_identity(), state, os.urandom)
    phone.change(_address())
    patience = Patience(answer_seconds=chain.patience_seconds, gather_seconds=0)
    sender = SendingClient(new_identity(os.urandom), os.urandom, patience=patience, fail_over=False)
    chain.register(phone, server)
    traces.note_pseudonym(row)
    chain.look_up(sender, client)
    chain.notify(sender, client, os.urandom(32))
    chain.unregister(phone, server)


def _address() -> Address:
    if not settings.CANARY_DEVICE_TOKEN:
        return Address(TokenType.APN, settings.CANARY_DRY_RUN_TOKEN, DRY_RUN_TOPIC)
    kind = TokenType.APN if settings.CANARY_APN_TOPIC else TokenType.FIREBASE
    return Address(kind, settings.CANARY_DEVICE_TOKEN, settings.CANARY_APN_TOPIC)


def _finish(row: CanaryRun, found: Diagnosis | None, timings_ms: dict[Link, int]) -> CanaryRun:
    row.state, row.finished_at, row.pseudonym = State.PASSED, timezone.now(), None
    if found:
        row.state, row.broken_link, row.cause, row.detail = State.BROKEN, found.link, found.cause, found.detail
    for link, milliseconds in timings_ms.items():
        setattr(row, f"{link.value}_ms", milliseconds)
    row.save()
    with suppress(RedisError):  # `/readyz` says that the broker is away
        board.pin(row)
    if found:
        log.error("canary_broken", link=row.broken_link, cause=row.cause, detail=row.detail)
    else:
        log.info("canary_passed", ms=_total_ms(row), work_ms=row.work_ms)
    return row


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _total_ms(row: CanaryRun) -> int:
    return sum(milliseconds or 0 for link, milliseconds in row.timings().items() if link != Link.GORUSH)


def is_under_way(*, now: datetime) -> bool:
    return CanaryRun.objects.filter(state=State.RUNNING, started_at__gte=now - _longest()).exists()


def purge(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Remove runs older than ``keep``, and what a killed one, or a late copy of its messages, left behind."""
    if not is_under_way(now=now):
        traces.remove_traces(now=now)
    return delete_in_chunks(CanaryRun.objects.filter(started_at__lt=now - keep).order_by("started_at"))
