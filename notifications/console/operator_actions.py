"""What operators do to routes and notifications.

Each action is safe to repeat, and by two people at once: it changes only what is still as it was, and returns how much
that is.
"""

from collections.abc import Collection
from datetime import datetime, timedelta

import structlog
from django.db import transaction

from kit.db.partitions import UNDER_WAY
from notifications.models import Notification
from notifications.queues.disabling import BY_OPERATOR, record_events
from notifications.rules.transitions import DUE, end
from registrations.models import RegistrationEvent, Route

log = structlog.get_logger(__name__)
State = Notification.State
# What is due this soon counts as due: of two operators who press the button at once, the later clock may be behind.
A_MOMENT = timedelta(seconds=1)


@transaction.atomic
def disable_routes(route_ids: Collection[int], *, now: datetime) -> int:
    """Send nothing to these routes until somebody enables them or their clients register again, and return how many.

    Senders are told that nobody is registered, and a client that registers is told of success and gets its pushes. No
    event is stored: this says nothing about the token, so reports go on counting it.
    """
    ids = _lock(route_ids, Route.State.ACTIVE)
    Route.objects.filter(pk__in=ids).update(state=Route.State.DISABLED, disabled_reason=BY_OPERATOR, disabled_at=now)
    withdrawn = end(Notification.objects.filter(route__in=ids), State.WITHDRAWN, now=now)
    log.info("routes_disabled_by_hand", count=len(ids), withdrawn=withdrawn)
    return len(ids)


@transaction.atomic
def enable_routes(route_ids: Collection[int], *, now: datetime) -> int:
    """Send to these routes again, for whatever reason they were disabled, and return how many.

    A route that is dead indeed is disabled again with the next push.
    """
    ids = _lock(route_ids, Route.State.DISABLED)
    disabled = Route.objects.filter(pk__in=ids)
    ended = list(disabled.exclude(disabled_reason=BY_OPERATOR).values_list("pk", flat=True))
    disabled.update(state=Route.State.ACTIVE, disabled_reason="", disabled_at=None, failing_since=None)
    record_events(ended, RegistrationEvent.Kind.REVIVED, now=now)
    log.info("routes_enabled_by_hand", count=len(ids))
    return len(ids)


def _lock(route_ids: Collection[int], state: Route.State) -> list[int]:
    """Lock the routes that are in this state, in the order in which all code locks them."""
    routes = Route.objects.filter(pk__in=route_ids, state=state)
    return list(routes.order_by("pk").select_for_update(no_key=True).values_list("pk", flat=True))


def try_now(notification_ids: Collection[int], *, now: datetime) -> int:
    """Make these notifications due now, and return how many. Workers take them up within seconds, if their channel
    runs.
    """
    waiting = Notification.objects.filter(pk__in=notification_ids, state__in=DUE, ended_on=UNDER_WAY)
    return waiting.filter(next_attempt_at__gt=now + A_MOMENT).update(next_attempt_at=now)


def drop(notification_ids: Collection[int], *, now: datetime) -> int:
    """Withdraw these notifications, and return how many. What a worker is sending already is left to it."""
    return end(Notification.objects.filter(pk__in=notification_ids), State.WITHDRAWN, now=now)
