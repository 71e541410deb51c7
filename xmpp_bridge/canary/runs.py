"""The runs of the canary, one after the other: a run's row is its lock, it is closed whatever happens, and its traces
are removed.
"""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta

import structlog
from django.conf import settings
from django.db import DatabaseError, IntegrityError, InterfaceError, transaction
from django.utils import timezone
from redis.exceptions import RedisError

from kit.db.deleting import delete_in_chunks
from xmpp_bridge.canary import board, traces
from xmpp_bridge.canary.chain import Chain, ChainBroken
from xmpp_bridge.canary.diagnosis import Diagnosis, Link
from xmpp_bridge.models import CanaryRun

log = structlog.get_logger(__name__)
State = CanaryRun.State


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


def _start(*, now: datetime) -> CanaryRun | None:
    with transaction.atomic():
        lost = CanaryRun.objects.filter(state=State.RUNNING, started_at__lt=now - _longest())
        lost.update(state=State.INTERRUPTED, finished_at=now)
    with suppress(IntegrityError), transaction.atomic():
        return CanaryRun.objects.create(started_at=now)
    return None


def _longest() -> timedelta:
    """Return a time that no living run takes."""
    return timedelta(seconds=len(Link) * settings.CANARY_PATIENCE_SECONDS + 60)


def _carry_out(row: CanaryRun) -> CanaryRun:
    timings_ms: dict[Link, int] = {}
    try:
        traces.remove_traces()
        traces.make_app()
        found = _go_round(row, timings_ms)
    finally:
        traces.remove_traces()
    return _finish(row, found, timings_ms)


def _go_round(row: CanaryRun, timings_ms: dict[Link, int]) -> Diagnosis | None:
    """Return what is broken, if anything is."""
    chain = Chain(settings.XMPP_COMPONENT_JID, settings.CANARY_PATIENCE_SECONDS, timings_ms)
    try:
        device = chain.register()
        traces.note_device(row, device)
        chain.push(device.pk)
        chain.unregister()
    except ChainBroken as broken:
        return broken.diagnosis
    return None


def _finish(row: CanaryRun, found: Diagnosis | None, timings_ms: dict[Link, int]) -> CanaryRun:
    row.state = State.PASSED
    row.finished_at = timezone.now()
    row.device = row.pseudonym = None
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
        log.error("xmpp_canary_broken", link=row.broken_link, cause=row.cause, detail=row.detail)
    else:
        log.info("xmpp_canary_passed", ms=sum(milliseconds or 0 for milliseconds in row.timings().values()))
    return row


def is_under_way(*, now: datetime) -> bool:
    """Return whether a run is under way."""
    return CanaryRun.objects.filter(state=State.RUNNING, started_at__gte=now - _longest()).exists()


def purge(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Remove runs older than ``keep``, and what a killed run left behind."""
    if not is_under_way(now=now):
        traces.remove_traces()
    return delete_in_chunks(CanaryRun.objects.filter(started_at__lt=now - keep).order_by("started_at"))
