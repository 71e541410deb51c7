"""Draining: delivery stops everywhere, while messages are read, accepted and answered, and notifications wait.

For work on gorush, or before a deployment. The switch is a row; whoever claims looks for it in the same statement
(`delivery.rows.lock_due`), so it holds from the next batch on, in every worker.
"""

from datetime import datetime

import structlog
from django.db import IntegrityError, transaction

from notifications.models import Drain

log = structlog.get_logger(__name__)


def current() -> Drain | None:
    """None while delivery runs."""
    return Drain.objects.first()


def start(*, by: str, why: str, now: datetime) -> bool:
    """Whether this call did it: of two, the later one changes nothing."""
    try:
        with transaction.atomic():
            Drain.objects.create(started_by=by, reason=why, since=now)
    except IntegrityError:
        return False
    log.warning("draining_started")
    return True


def stop() -> bool:
    """What waited is handed out by the next sweeps, the longest due first."""
    deleted, _ = Drain.objects.all().delete()
    if deleted:
        log.warning("draining_stopped")
    return bool(deleted)
