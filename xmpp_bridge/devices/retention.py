"""Retention of devices: unused ones end, and their rows are deleted later."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from kit.db.deleting import delete_in_chunks
from kit.expiry.asking import may_end
from xmpp_bridge.devices.registering import end
from xmpp_bridge.models import Device

CHUNK = 200
State = Device.State


def expire(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """End devices that were neither pushed to nor registered again for ``keep``. Yield how many each step ended.

    If they are more than may end without an operator's permission, none ends (`kit.expiry`).
    """
    unused = Q(registered_at__lt=now - keep) & (Q(pushed_at__isnull=True) | Q(pushed_at__lt=now - keep))
    devices = Device.objects.filter(unused, state=State.ACTIVE)
    if not may_end("devices", devices.count(), Device.objects.filter(state=State.ACTIVE).count(), now=now):
        return
    while True:
        with transaction.atomic():
            chunk = list(devices.order_by("registered_at").select_for_update(skip_locked=True)[:CHUNK])
            for device in chunk:
                end(device, State.EXPIRED, now=now)
        if not chunk:
            return
        yield len(chunk)


def purge(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Delete the rows of devices that ended ``keep`` ago. Yield how many each step deleted."""
    ended = Device.objects.filter(ended_at__lt=now - keep).exclude(state=State.ACTIVE)
    return delete_in_chunks(ended.order_by("ended_at"))
