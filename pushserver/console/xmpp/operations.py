"""Operations on devices: disable, enable, remove. Each is safe to repeat, and safe for two operators at once."""

from collections.abc import Mapping, Sequence

import structlog
from django.db import transaction

from kit.db.clock import database_now
from kit.display import counted
from notifications.models import WAITING, OpenNotification
from pushserver.console.notifications.operations import Disable, Enable, route_ids_of
from pushserver.console.toolkit.operations import Done, Operation, done
from registrations.models import Route
from xmpp_bridge.devices import end
from xmpp_bridge.models import Device

log = structlog.get_logger(__name__)
WITHDRAWN = "Waiting notifications that are withdrawn: {waiting}."


class DisableDevice(Disable):
    noun = "device"
    effects = (
        "Devices with an active route: {of_all}. Nothing is sent to them any more.",
        WITHDRAWN,
        "Their users' servers get an error for the device, and most of them forget it.",
        "A device is active again when an operator enables it, or when its app registers again by itself.",
    )


class EnableDevice(Enable):
    """Enable the routes of devices. A later end of theirs is announced once more."""

    noun = "device"
    effects = (
        "Devices with a disabled route, which gets pushes again: {of_all}.",
        "Servers that have forgotten a device do not push to it until its app enables pushes there again.",
    )
    again = "The next push disables the route of a dead token again."

    @transaction.atomic
    def run(self, rows: Sequence[Device], *, by: str) -> Done:
        enabled = super().run(rows, by=by)
        Route.objects.filter(pk__in=route_ids_of(rows), state=Route.State.ACTIVE).update(is_end_awaited=True)
        return enabled


class RemoveDevice(Operation):
    """End devices as if their apps had unregistered them. Later pushes to them get an error."""

    label = "Remove"
    permission = "xmpp_bridge.remove_device"
    is_destructive = True
    effects = (
        "Registered devices: {fitting}. Their tokens are removed, which cannot be undone.",
        WITHDRAWN,
        "Their users' servers get an error for the next push.",
        "When the app registers again, as apps do by themselves, it gets a new device.",
    )

    @classmethod
    def fits(cls, row: Device) -> bool:
        return row.state == Device.State.ACTIVE

    def facts(self, rows: Sequence[Device]) -> Mapping[str, object]:
        routes = route_ids_of([row for row in rows if self.fits(row)])
        waiting = OpenNotification.objects.filter(route__in=routes, state__in=WAITING).count()
        return {**super().facts(rows), "waiting": waiting}

    @transaction.atomic
    def run(self, rows: Sequence[Device], *, by: str) -> Done:
        active = Device.objects.filter(pk__in=[row.pk for row in rows], state=Device.State.ACTIVE)
        devices = list(active.select_related("route").order_by("pk").select_for_update(of=("self",)))
        now = database_now()
        for device in devices:
            end(device, Device.State.UNREGISTERED, now=now)
        log.info("devices_removed_on_demand", count=len(devices))
        return done(len(devices), f"Removed {counted(len(devices), 'device')}.")
