"""The operations on routes and notifications that the console offers."""

from collections.abc import Iterable, Sequence

from kit.db.clock import database_now
from kit.display import counted
from notifications.models import WAITING, Notification, OpenNotification
from pushserver.console.notifications import operator_actions
from pushserver.console.toolkit.operations import Done, Operation
from registrations.models import Registration, Route

State = Route.State
ALREADY = "Already done: nothing was changed."


class DisableRegistration(Operation):
    """Disables the route of a registration. The operation is on registrations because people look for these."""

    label = "Disable"
    permission = "registrations.disable_route"
    is_destructive = True

    @classmethod
    def fits(cls, row: Registration) -> bool:
        return bool(row.route and row.route.state == State.ACTIVE)

    def touched(self, rows: Sequence[Registration]) -> Iterable[str]:
        active = Route.objects.filter(registration__in=rows, state=State.ACTIVE)
        waiting = OpenNotification.objects.filter(route__in=active, state__in=WAITING)
        yield f"Registrations with an active route: {active.count()} of {len(rows)}. Nothing is sent there any more."
        yield f"Notifications that wait for it and are withdrawn: {waiting.count()}."
        yield "Senders are told that nobody is registered."
        yield "It ends when somebody enables it, or when the client registers again, as clients do by themselves."

    def run(self, rows: Sequence[Registration], *, by: str) -> Done:
        count = operator_actions.disable_routes(_routes_of(rows), now=database_now())
        return Done(f"Disabled {counted(count, 'registration')}.") if count else Done(ALREADY, is_change=False)


class EnableRegistration(Operation):
    label = "Enable"
    permission = "registrations.disable_route"

    @classmethod
    def fits(cls, row: Registration) -> bool:
        return bool(row.route and row.route.state == State.DISABLED)

    def touched(self, rows: Sequence[Registration]) -> Iterable[str]:
        disabled = Route.objects.filter(registration__in=rows, state=State.DISABLED)
        reasons = sorted(set(disabled.values_list("disabled_reason", flat=True)))
        yield f"Registrations with a disabled route, which would be sent to again: {disabled.count()} of {len(rows)}."
        if reasons:
            yield f"Disabled for: {', '.join(reasons)}. A token that is dead indeed is disabled with the next push."

    def run(self, rows: Sequence[Registration], *, by: str) -> Done:
        count = operator_actions.enable_routes(_routes_of(rows), now=database_now())
        return Done(f"Enabled {counted(count, 'registration')}.") if count else Done(ALREADY, is_change=False)


def _routes_of(rows: Sequence[Registration]) -> list[int]:
    return [row.route_id for row in rows if row.route_id]


class NotificationOperation(Operation):
    """An operation on notifications that wait."""

    permission = "notifications.operate_notification"

    @classmethod
    def fits(cls, row: Notification) -> bool:
        return row.state in WAITING


class TryNow(NotificationOperation):
    label = "Try now"

    def touched(self, rows: Sequence[Notification]) -> Iterable[str]:
        waiting = [row for row in rows if row.state in WAITING]
        yield f"Notifications that wait, and would be sent within seconds: {len(waiting)} of {len(rows)}."
        yield "Notifications of a halted channel go on waiting. One that is over cannot be sent: its content is gone."

    def run(self, rows: Sequence[Notification], *, by: str) -> Done:
        count = operator_actions.try_now([row.pk for row in rows], now=database_now())
        return Done(f"{counted(count, 'notification')} due now.") if count else Done(ALREADY, is_change=False)


class DropNotifications(NotificationOperation):
    label = "Drop"
    is_destructive = True

    def touched(self, rows: Sequence[Notification]) -> Iterable[str]:
        waiting = [row for row in rows if row.state in WAITING]
        yield f"Notifications that wait, and would never be sent: {len(waiting)} of {len(rows)}."
        yield "Senders who still wait for an answer are told success. What a worker is sending at this moment is sent."

    def run(self, rows: Sequence[Notification], *, by: str) -> Done:
        count = operator_actions.drop([row.pk for row in rows], now=database_now())
        return Done(f"Dropped {counted(count, 'notification')}.") if count else Done(ALREADY, is_change=False)
