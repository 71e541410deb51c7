"""Console operations on devices: disable, enable, remove."""

from collections.abc import Iterable, Sequence

from kit.db.clock import database_now
from kit.display import counted
from notifications.models import WAITING, OpenNotification
from pushserver.console.toolkit.operations import Done, Operation
from pushserver.console.xmpp import operator_actions
from registrations.models import Route
from xmpp_bridge.models import Device

State = Route.State


class DisableDevice(Operation):
    label = "Disable"
    permission = "registrations.disable_route"
    is_destructive = True

    @classmethod
    def fits(cls, row: Device) -> bool:
        return bool(row.route and row.route.state == State.ACTIVE)

    def touched(self, rows: Sequence[Device]) -> Iterable[str]:
        active = Route.objects.filter(device__in=rows, state=State.ACTIVE)
        yield f"Devices with an active route: {active.count()} of {len(rows)}. Nothing is sent to them any more."
        yield _withdrawn(active.values_list("pk", flat=True))
        yield "Their users' servers get an error for the device, and most of them forget it."
        yield "A device is active again when an operator enables it, or when its app registers again by itself."

    def run(self, rows: Sequence[Device], *, by: str) -> Done:
        return _done("Disabled", operator_actions.disable([row.pk for row in rows], now=database_now()))


class EnableDevice(Operation):
    label = "Enable"
    permission = "registrations.disable_route"

    @classmethod
    def fits(cls, row: Device) -> bool:
        return bool(row.route and row.route.state == State.DISABLED)

    def touched(self, rows: Sequence[Device]) -> Iterable[str]:
        disabled = Route.objects.filter(device__in=rows, state=State.DISABLED)
        reasons = sorted(set(disabled.values_list("disabled_reason", flat=True)))
        yield f"Devices with a disabled route, which gets pushes again: {disabled.count()} of {len(rows)}."
        if reasons:
            yield f"Disabled for: {', '.join(reasons)}. The next push disables the route of a dead token again."
        yield "Servers that have forgotten a device do not push to it until its app enables pushes there again."

    def run(self, rows: Sequence[Device], *, by: str) -> Done:
        return _done("Enabled", operator_actions.enable([row.pk for row in rows], now=database_now()))


class RemoveDevice(Operation):
    label = "Remove"
    permission = "xmpp_bridge.remove_device"
    is_destructive = True

    @classmethod
    def fits(cls, row: Device) -> bool:
        return row.state == Device.State.ACTIVE

    def touched(self, rows: Sequence[Device]) -> Iterable[str]:
        active = [row for row in rows if row.state == Device.State.ACTIVE]
        yield f"Registered devices: {len(active)} of {len(rows)}. Their tokens are removed, which cannot be undone."
        yield _withdrawn([row.route_id for row in active if row.route_id])
        yield "Their users' servers get an error for the next push."
        yield "When the app registers again, as apps do by themselves, it gets a new device."

    def run(self, rows: Sequence[Device], *, by: str) -> Done:
        return _done("Removed", operator_actions.remove([row.pk for row in rows], now=database_now()))


def _withdrawn(route_ids: Iterable[int]) -> str:
    waiting = OpenNotification.objects.filter(route__in=list(route_ids), state__in=WAITING)
    return f"Waiting notifications that are withdrawn: {waiting.count()}."


def _done(verb: str, count: int) -> Done:
    if not count:
        return Done("Already done: nothing was changed.", is_change=False)
    return Done(f"{verb} {counted(count, 'device')}.")
