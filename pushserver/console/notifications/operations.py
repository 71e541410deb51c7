"""Operations on routes and notifications.

Each may be repeated, also by two people at once: it changes only rows that are still as they were.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar

import structlog
from django.db import transaction
from django.db.models import QuerySet

from kit.db.clock import database_now
from kit.display import counted
from notifications.models import WAITING, Notification, OpenNotification
from notifications.queues.breakers import BY_OPERATOR, record_events
from notifications.queues.ending import end
from pushserver.console.toolkit.operations import Done, Operation, done
from registrations.models import RegistrationEvent, Route

log = structlog.get_logger(__name__)
# A notification that is due within this time counts as due. The clock of a second operator may be a little behind.
A_MOMENT = timedelta(seconds=1)


class RouteOperation(Operation):
    """An operation on the routes of registrations or devices, because people look for these, and not for routes."""

    permission = "registrations.disable_route"
    # The rows with such a route are meant; ``noun`` names one of them.
    state: ClassVar[Route.State]
    noun: ClassVar[str]

    @classmethod
    def fits(cls, row: Any) -> bool:
        return bool(row.route and row.route.state == cls.state)

    def routes(self, rows: Sequence[Any]) -> QuerySet[Route]:
        return Route.objects.filter(pk__in=route_ids_of(rows), state=self.state)


class Disable(RouteOperation):
    label = "Disable"
    is_destructive = True
    state = Route.State.ACTIVE

    def facts(self, rows: Sequence[Any]) -> Mapping[str, object]:
        active = self.routes(rows)
        waiting = OpenNotification.objects.filter(route__in=active, state__in=WAITING).count()
        return {"of_all": f"{active.count()} of {len(rows)}", "waiting": waiting}

    def run(self, rows: Sequence[Any], *, by: str) -> Done:
        count = disable_routes(route_ids_of(rows), now=database_now())
        return done(count, f"Disabled {counted(count, self.noun)}.")


class Enable(RouteOperation):
    label = "Enable"
    state = Route.State.DISABLED
    # What is said of the reasons for which the routes were disabled.
    again: ClassVar[str]

    def touched(self, rows: Sequence[Any]) -> Iterable[str]:
        disabled = self.routes(rows)
        first, *others = self.effects
        yield first.format(of_all=f"{disabled.count()} of {len(rows)}")
        if reasons := sorted(set(disabled.values_list("disabled_reason", flat=True))):
            yield f"Disabled for: {', '.join(reasons)}. {self.again}"
        yield from others

    def run(self, rows: Sequence[Any], *, by: str) -> Done:
        count = enable_routes(route_ids_of(rows), now=database_now())
        return done(count, f"Enabled {counted(count, self.noun)}.")


class DisableRegistration(Disable):
    noun = "registration"
    effects = (
        "Registrations with an active route: {of_all}. Nothing is sent there any more.",
        "Notifications that wait for it and are withdrawn: {waiting}.",
        "Senders are told that nobody is registered.",
        "It ends when somebody enables it, or when the client registers again, as clients do by themselves.",
    )


class EnableRegistration(Enable):
    noun = "registration"
    effects = ("Registrations with a disabled route, which would be sent to again: {of_all}.",)
    again = "A token that is dead indeed is disabled with the next push."


class NotificationOperation(Operation):
    """An operation on notifications that wait."""

    permission = "notifications.operate_notification"

    @classmethod
    def fits(cls, row: Notification) -> bool:
        return row.state in WAITING


class TryNow(NotificationOperation):
    label = "Try now"
    effects = (
        "Notifications that wait, and would be sent within seconds: {fitting}.",
        "Notifications of a halted app go on waiting. One that is over cannot be sent: its content is gone.",
    )

    def run(self, rows: Sequence[Notification], *, by: str) -> Done:
        now = database_now()
        waiting = OpenNotification.objects.filter(pk__in=[row.pk for row in rows], state__in=WAITING)
        count = waiting.filter(due_at__gt=now + A_MOMENT).update(due_at=now)
        return done(count, f"{counted(count, 'notification')} due now.")


class DropNotifications(NotificationOperation):
    label = "Drop"
    is_destructive = True
    effects = (
        "Notifications that wait, and would never be sent: {fitting}.",
        "Senders who still wait for an answer are told success. What a worker is sending at this moment is sent.",
    )

    def run(self, rows: Sequence[Notification], *, by: str) -> Done:
        count = end([row.pk for row in rows], Notification.State.WITHDRAWN, now=database_now())
        return done(count, f"Dropped {counted(count, 'notification')}.")


def route_ids_of(rows: Sequence[Any]) -> list[int]:
    return [row.route_id for row in rows if row.route_id]


@transaction.atomic
def disable_routes(route_ids: Collection[int], *, now: datetime) -> int:
    """Disable routes until an operator enables them or their clients register again. Return their number.

    Senders get the report `not_registered`. A client that registers gets success, and its pushes. No event is stored:
    this is no fact about the token, so reports go on counting it.
    """
    ids = _lock(route_ids, Route.State.ACTIVE)
    Route.objects.filter(pk__in=ids).update(state=Route.State.DISABLED, disabled_reason=BY_OPERATOR, disabled_at=now)
    withdrawn = end(ids, Notification.State.WITHDRAWN, now=now, by="route_id")
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
