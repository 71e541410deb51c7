"""Operator actions on routes and notifications.

Each action may be repeated, also by two people at once: it changes only rows that are still as they were, and returns
their number.
"""

from collections.abc import Collection
from datetime import datetime, timedelta

import structlog
from django.db import transaction
from django.db.models import Q, QuerySet

from notifications.messages import ChannelKey
from notifications.models import WAITING, Notification, OpenNotification
from notifications.queues.breakers import BY_OPERATOR, FAILING, record_events
from notifications.queues.ending import end
from registrations.messages import has_topic
from registrations.models import RegistrationEvent, Route

log = structlog.get_logger(__name__)
State = Notification.State
# A notification that is due within this time counts as due. The clock of a second operator may be a little behind.
A_MOMENT = timedelta(seconds=1)


@transaction.atomic
def disable_routes(route_ids: Collection[int], *, now: datetime) -> int:
    """Disable routes until an operator enables them or their clients register again. Return their number.

    Senders get the report `not_registered`. A client that registers gets success, and its pushes. No event is stored:
    this is no fact about the token, so reports go on counting it.
    """
    ids = _lock(route_ids, Route.State.ACTIVE)
    Route.objects.filter(pk__in=ids).update(state=Route.State.DISABLED, disabled_reason=BY_OPERATOR, disabled_at=now)
    withdrawn = end(ids, State.WITHDRAWN, now=now, by="route_id")
    log.info("routes_disabled_on_demand", count=len(ids), withdrawn=withdrawn)
    return len(ids)


@transaction.atomic
def enable_routes(route_ids: Collection[int], *, now: datetime) -> int:
    """Enable routes, whatever disabled them, and return their number.

    A route whose token is dead is disabled again with the next push.
    """
    ids = _lock(route_ids, Route.State.DISABLED)
    disabled = Route.objects.filter(pk__in=ids)
    ended = list(disabled.exclude(disabled_reason=BY_OPERATOR).values_list("pk", flat=True))
    disabled.update(state=Route.State.ACTIVE, disabled_reason="", disabled_at=None, failing_since=None)
    record_events(ended, RegistrationEvent.Kind.REVIVED, now=now)
    log.info("routes_enabled_on_demand", count=len(ids))
    return len(ids)


def _lock(route_ids: Collection[int], state: Route.State) -> list[int]:
    """Lock the routes that are in this state, in the order in which all code locks them."""
    routes = Route.objects.filter(pk__in=route_ids, state=state)
    return list(routes.order_by("pk").select_for_update(no_key=True).values_list("pk", flat=True))


def disabled_since(key: ChannelKey, since: datetime) -> QuerySet[Route]:
    """Return the routes that died since ``since`` and are still disabled.

    Routes that failed for days, and those that an operator disabled, are left out: a short fault of the set-up is not
    the reason.
    """
    own = Q(token_type=key.token_type)
    if has_topic(key.token_type):
        own &= Q(app_topic=key.app_topic)
    return Route.objects.filter(own, state=Route.State.DISABLED, disabled_at__gte=since).exclude(
        disabled_reason__in=[FAILING, BY_OPERATOR]
    )


@transaction.atomic
def undo_disabling(key: ChannelKey, since: datetime, *, now: datetime) -> int:
    """Make these routes active again, because the set-up was at fault and not their tokens. Return how many.

    It is done for all of them or for none. A client that registers one of them again waits for the end of the
    transaction: some 10 s for 100 000 routes.
    """
    dead = disabled_since(key, since).select_for_update(no_key=True).order_by("pk")
    ids = list(dead.values_list("pk", flat=True))
    Route.objects.filter(pk__in=ids).update(
        state=Route.State.ACTIVE, disabled_reason="", disabled_at=None, failing_since=None
    )
    record_events(ids, RegistrationEvent.Kind.REVIVED, now=now)
    return len(ids)


def try_now(notification_ids: Collection[int], *, now: datetime) -> int:
    """Make these notifications due now, and return how many. Workers take them up within seconds, if their channel
    runs.
    """
    waiting = OpenNotification.objects.filter(pk__in=notification_ids, state__in=WAITING)
    return waiting.filter(due_at__gt=now + A_MOMENT).update(due_at=now)


def drop(notification_ids: Collection[int], *, now: datetime) -> int:
    """Withdraw these notifications, and return how many. What a worker is sending already is left to it."""
    return end(notification_ids, State.WITHDRAWN, now=now)
