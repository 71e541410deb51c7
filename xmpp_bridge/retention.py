"""Removing devices that nobody uses, and later the memory of them."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from kit.db.deleting import delete_in_chunks
from xmpp_bridge.models import Device
from xmpp_bridge.registering import end

CHUNK = 200
State = Device.State


def expire(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """End devices that were neither pushed to nor registered again for so long. Yield how many each step ended."""
    unused = Q(registered_at__lt=now - keep) & (Q(pushed_at__isnull=True) | Q(pushed_at__lt=now - keep))
    while True:
        with transaction.atomic():
            devices = Device.objects.filter(unused, state=State.ACTIVE).order_by("registered_at")
            chunk = list(devices.select_for_update(skip_locked=True)[:CHUNK])
            for device in chunk:
                end(device, State.EXPIRED, now=now)
        if not chunk:
            return
        yield len(chunk)


def purge(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Forget devices that ended so long ago. Yield how many rows each step removed."""
    ended = Device.objects.filter(ended_at__lt=now - keep).exclude(state=State.ACTIVE)
    return delete_in_chunks(ended.order_by("ended_at"))
