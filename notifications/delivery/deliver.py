"""Trying a batch of notifications once each: the use case behind the delivery task."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from time import monotonic

from django.utils import timezone

from notifications import channels
from notifications.delivery.claim import Claimed, claim
from notifications.delivery.lanes import Lanes, own_lanes
from notifications.delivery.late import Listener, own_recorder
from notifications.delivery.queueing import put_back
from notifications.delivery.recording import record_however_long_it_takes
from notifications.delivery.sending import Flight
from notifications.gateways.interface import Gateway


def _tell_nobody(_request_ids: set[int]) -> None:
    """For callers without patience for late results."""


def deliver(
    notification_ids: Sequence[int],
    gateway: Gateway,
    *,
    lease: timedelta,
    patience: timedelta | None = None,
    when_late: Listener = _tell_nobody,
    lanes: Lanes | None = None,
) -> Iterator[set[int]]:
    """Try each notification that is due once, and yield the requests concerned as results come in.

    ``lease`` is longer than any try at the gateway takes: whoever holds one that ran out is dead. After ``patience``
    (by default the lease) the rest is left to a thread of this process, which tells ``when_late`` the requests
    concerned, and what found no room in its channel goes back. The rest is left so, too, when recording fails or the
    caller stops listening.
    Safe to run twice: what another worker has claimed, or what is over, is left alone.
    """
    lanes = lanes or own_lanes()
    until = monotonic() + (patience or lease).total_seconds()
    remaining = notification_ids
    while remaining:
        claimed = claim(remaining, gateway_name=gateway.name, now=timezone.now(), lease=lease, lanes=lanes)
        # First of all: what was claimed and not sent would keep its room for the life of this process.
        yield from _carry_out(claimed, gateway, lease=lease, until=until, when_late=when_late, lanes=lanes)
        channels.park(claimed.halted_ids)
        remaining = claimed.crowded_ids
        if not all(lanes.wait_for_room(lane, len(remaining), until=until) for lane in claimed.crowded_lanes):
            put_back(remaining, now=timezone.now())
            return


def _carry_out(
    claimed: Claimed, gateway: Gateway, *, lease: timedelta, until: float, when_late: Listener, lanes: Lanes
) -> Iterator[set[int]]:
    if not claimed.claims:
        return
    # Whether a channel hangs was found out by another task: this one need not wait to find out again.
    is_slow = any(map(lanes.is_slow, {held.lane for held in claimed.claims}))
    flight = Flight(claimed.claims, gateway, lease=lease, lanes=lanes)
    outstanding, is_overdue = len(claimed.claims), False
    try:
        for results in flight.results(until=monotonic() if is_slow else until):
            outstanding -= len(results)
            record_however_long_it_takes(results, patience=lease)
            yield {done.request_id for done, _ in results}
        is_overdue = not is_slow
    finally:
        # Also when recording failed, or the caller did: a result that nobody takes is a push that is sent again.
        if outstanding:
            put = own_recorder().expect(outstanding, patience=lease, listener=when_late)
            flight.hand_over(put, as_overdue=is_overdue)
