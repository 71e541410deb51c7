"""Draining: delivery stops everywhere, while messages are read, accepted and answered, and notifications wait.

It is used for work on a gateway, or before a deployment. The switch is a row, and the statement that claims looks for
it (`delivery.claim`), so that it holds from the next batch on, in every worker.
"""

from datetime import datetime

import structlog
from django.db import IntegrityError, transaction

from notifications.models import Drain

log = structlog.get_logger(__name__)

# What canaries say about a push that nobody tries because of it.
NO_PUSH_IS_TRIED = "an operator stopped delivery: no push is tried"


def current() -> Drain | None:
    """Return the drain that holds, or None while delivery runs."""
    return Drain.objects.first()


def start(*, by: str, why: str, now: datetime) -> bool:
    """Stop delivery, and return whether this call did it: of two calls, the later one changes nothing."""
    try:
        with transaction.atomic():
            Drain.objects.create(started_by=by, reason=why, since=now)
    except IntegrityError:
        return False
    log.warning("draining_started")
    return True


def stop() -> bool:
    """Let delivery run again, and return whether it was stopped. Workers take up what waited, the longest due first."""
    deleted, _ = Drain.objects.all().delete()
    if deleted:
        log.warning("draining_stopped")
    return bool(deleted)
