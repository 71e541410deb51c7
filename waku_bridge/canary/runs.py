"""The runs of the canary, one after the other: a run's row is its lock, it is closed whatever happens, and its traces
are removed.
"""

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

from kit.db.deleting import delete_in_chunks
from registrations.messages import TokenType
from waku_bridge.canary import board, traces
from waku_bridge.canary.chain import Chain, ChainBroken
from waku_bridge.canary.diagnosis import Diagnosis, Link
from waku_bridge.canary.line import TIMEOUT_SECONDS, Line
from waku_bridge.client import Address, Patience, RegisteringClient, SendingClient, new_identity, new_state
from waku_bridge.identity import canary_identity, server_identities
from waku_bridge.models import CanaryRun

log = structlog.get_logger(__name__)
State = CanaryRun.State

EXCHANGES = 4


def run() -> CanaryRun | None:
    """Make one round trip and record it, or return None when another one is under way.

    It takes seconds, nearly all of them waiting.
    """
    row = _start(now=timezone.now())
    if row is None:
        return None
    try:
        return _carry_out(row)
    except BaseException:
        # This is a fault of ours, or the database is away. In that case the row stays until it is too old to belong to
        # a living run.
        row.state = State.INTERRUPTED
        row.finished_at = timezone.now()
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
    """Return a time that no living run takes."""
    peers = len(settings.WAKU_NODES) + len(settings.WAKU_STORE_NODES)
    return timedelta(seconds=(EXCHANGES + 1) * (settings.CANARY_PATIENCE_SECONDS + 2 * peers * TIMEOUT_SECONDS) + 60)


def _go_round(row: CanaryRun, timings_ms: dict[Link, int]) -> Diagnosis | None:
    """Return what is broken, if anything is."""
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
    client = canary_identity().pub33
    server = _next_server(row)
    # The version is above that of any earlier run, which may have left a registration.
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


def _next_server(row: CanaryRun) -> bytes:
    """Return the identity that this run addresses: while the server's key is being changed, each in turn."""
    identities = server_identities()
    return identities[row.pk % len(identities)].pub33


def _address() -> Address:
    if not settings.CANARY_DEVICE_TOKEN:
        return Address(TokenType.APN, settings.CANARY_DRY_RUN_TOKEN, settings.CANARY_DRY_RUN_TOPIC)
    kind = TokenType.APN if settings.CANARY_APN_TOPIC else TokenType.FIREBASE
    return Address(kind, settings.CANARY_DEVICE_TOKEN, settings.CANARY_APN_TOPIC)


def _finish(row: CanaryRun, found: Diagnosis | None, timings_ms: dict[Link, int]) -> CanaryRun:
    row.state = State.PASSED
    row.finished_at = timezone.now()
    row.pseudonym = None
    if found:
        row.state = State.BROKEN
        row.broken_link = found.link
        row.cause = found.cause
        row.detail = found.detail
    for link, milliseconds in timings_ms.items():
        setattr(row, f"{link.value}_ms", milliseconds)
    row.save()
    with suppress(RedisError):  # `/readyz` says that the broker is away
        board.pin(row)
    if found:
        log.error("canary_broken", link=row.broken_link, cause=row.cause, detail=row.detail)
    else:
        # What gorush took is within the time until the answer, and must not count twice.
        total_ms = sum(milliseconds or 0 for link, milliseconds in row.timings().items() if link != Link.GORUSH)
        log.info("canary_passed", ms=total_ms, work_ms=row.work_ms)
    return row


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def is_under_way(*, now: datetime) -> bool:
    """Return whether a run is under way."""
    return CanaryRun.objects.filter(state=State.RUNNING, started_at__gte=now - _longest()).exists()


def purge(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Remove runs older than ``keep``, and what a killed run, or a late copy of its messages, left behind."""
    if not is_under_way(now=now):
        traces.remove_traces(now=now)
    return delete_in_chunks(CanaryRun.objects.filter(started_at__lt=now - keep).order_by("started_at"))
