"""What operators do to devices of XMPP. Each action is safe to repeat, and by two people at once."""

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

import structlog
from django.db import transaction

from notifications import operator_actions
from registrations.models import Route
from xmpp_bridge.models import Device
from xmpp_bridge.registering import end

log = structlog.get_logger(__name__)
State = Device.State


@transaction.atomic
def remove(device_ids: Collection[UUID], *, now: datetime) -> int:
    """End these devices as if their apps had unregistered them, and return how many.

    Their addresses are forgotten, and what waits for them is withdrawn; servers that push on are told that they are
    gone.
    """
    active = Device.objects.filter(pk__in=device_ids, state=State.ACTIVE)
    devices = list(active.select_related("route").order_by("pk").select_for_update(of=("self",)))
    for device in devices:
        end(device, State.UNREGISTERED, now=now)
    log.info("devices_removed_by_hand", count=len(devices))
    return len(devices)


def disable(device_ids: Collection[UUID], *, now: datetime) -> int:
    """Send nothing to these devices until somebody enables them or their apps register again, and return how many."""
    return operator_actions.disable_routes(_routes_of(device_ids), now=now)


@transaction.atomic
def enable(device_ids: Collection[UUID], *, now: datetime) -> int:
    """Send to these devices again, and return how many. When one ends once more, its server is told so once more."""
    route_ids = _routes_of(device_ids)
    count = operator_actions.enable_routes(route_ids, now=now)
    Route.objects.filter(pk__in=route_ids, state=Route.State.ACTIVE).update(is_end_awaited=True)
    return count


def _routes_of(device_ids: Collection[UUID]) -> list[int]:
    devices = Device.objects.filter(pk__in=device_ids, route__isnull=False)
    return list(devices.values_list("route_id", flat=True))
