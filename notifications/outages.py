"""Outages: a gateway that cannot be reached is probed with one push at a time, and everything else waits for it.

A notification of such a gateway is parked, as for a halted channel: it is next due when it expires, so that nothing
reads it before. A probe that reaches the gateway ends the outage and releases what waited. Locks go from the outage to
the notifications, never back.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import DurationField, ExpressionWrapper, F, QuerySet, Value
from django.db.models.functions import Random

from kit.db.statements import fetch
from kit.metrics.batches import count
from notifications import channels
from notifications.messages import UNREACHABLE, Result
from notifications.metrics import GATEWAY_OUTAGES
from notifications.models import GatewayOutage, Notification
from notifications.transitions import DUE

log = structlog.get_logger(__name__)

# Released notifications are spread over time, so that new ones are not queued behind all of them.
RELEASED_PER_SECOND = 1000
# Codes of results that were made without the gateway.
WITHOUT_CONTACT = frozenset({UNREACHABLE, "gateway_failed", "no_gateway"})

_BEGIN = """
    INSERT INTO notifications_gatewayoutage (name, since, next_probe_at)
    SELECT name, %(now)s, %(probe_at)s FROM unnest(%(names)b::text[]) AS away (name) ORDER BY name
    ON CONFLICT (name) DO NOTHING RETURNING name
"""


def begin(results: Iterable[tuple[str, Result]], known: Collection[str], *, now: datetime) -> None:
    """Note the gateways that no push of a batch reached. ``results`` have the name of their gateway."""
    seen = list(results)
    away = {name for name, result in seen if result.code == UNREACHABLE} - {n for n, r in seen if is_contact(r)}
    new = sorted(away - set(known))
    if new:
        begun = fetch(_BEGIN, {"now": now, "probe_at": now + _pause(), "names": new})
        count(GATEWAY_OUTAGES, begun)
        for (name,) in begun:
            log.error("gateway_unreachable", gateway=name)


def is_contact(result: Result) -> bool:
    """Return whether a result shows that the gateway was there."""
    return not result.is_untried and result.code not in WITHOUT_CONTACT


@transaction.atomic
def end(name: str, *, now: datetime) -> None:
    """Send through this gateway again, beginning with what waited."""
    outage = GatewayOutage.objects.select_for_update().filter(name=name).first()
    if outage is None:
        return
    waiting = _parked(name).exclude(channels.routed_to(channels.load_halted()))
    spread = timedelta(seconds=waiting.count() / RELEASED_PER_SECOND)
    delay = ExpressionWrapper(Random() * Value(spread), output_field=DurationField())
    released = Notification.objects.filter(pk__in=waiting.values("pk")).update(next_attempt_at=Value(now) + delay)
    outage.delete()
    log.info("gateway_reached", gateway=name, released=released)


def _parked(name: str) -> QuerySet[Notification]:
    return Notification.objects.filter(route__gateway=name, state__in=DUE, next_attempt_at=F("expires_at"))


def take_probe(name: str, *, now: datetime) -> bool:
    """Return whether the caller may send one push through this gateway. One may be sent in each pause, in the whole
    fleet.

    It never waits for the row: the caller holds notifications, and the holder of the row may be waiting for those.
    """
    due = GatewayOutage.objects.filter(name=name, next_probe_at__lte=now)
    outage = due.select_for_update(skip_locked=True).first()
    if outage is None:
        return False
    GatewayOutage.objects.filter(name=name).update(next_probe_at=now + _pause())
    return True


def release_probes(*, now: datetime) -> None:
    """Let one parked notification of each gateway go that may be probed: the one that expires first."""
    for name in GatewayOutage.objects.filter(next_probe_at__lte=now).values_list("name", flat=True):
        parked = _parked(name).exclude(channels.routed_to(channels.load_halted()))
        candidate = parked.order_by("next_attempt_at").values_list("pk", flat=True).first()
        if candidate:
            Notification.objects.filter(pk=candidate, state__in=DUE).update(next_attempt_at=now)


@transaction.atomic
def park(notification_ids: Sequence[int]) -> None:
    """Set aside the notifications whose gateway is still away.

    The outage is locked first, so that its end misses none of them.
    """
    if not notification_ids:
        return
    for outage in GatewayOutage.objects.select_for_update().order_by("name"):
        waiting = Notification.objects.filter(route__gateway=outage.name, state__in=DUE, pk__in=notification_ids)
        waiting.update(next_attempt_at=F("expires_at"))


def _pause() -> timedelta:
    return timedelta(seconds=settings.GATEWAY_PROBE_SECONDS)
