"""Disabling of routes (dead ones at once, failing ones after days) and undoing it.

The clock of a failing route ignores its provider's outages. The time between two of its failures counts only when the
channel delivered something in between. Then it counts for at most `MAX_COUNTED`, because a route without an attempt for
longer may have been fine. All other time moves `failing_since` forward. During an outage nothing of the channel is
delivered, so it stops the clocks of all its routes at the first failure after its last success.
"""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Case, DateTimeField, DurationField, ExpressionWrapper, F, Q, QuerySet, Value, When
from django.db.models.functions import Coalesce, Least

from kit.metrics.batches import count
from notifications.messages import ChannelKey
from notifications.metrics import ROUTES_DISABLED
from registrations.models import RegistrationEvent, Route
from registrations.token_types import has_topic

MAX_COUNTED = timedelta(hours=6)
FAILING = "failing"
BY_OPERATOR = "operator"
# A route that fails for this long, while other routes of its channel work, is disabled.
FAILING_AFTER = timedelta(hours=72)
Kind = RegistrationEvent.Kind
_REASONS = {Kind.TOKEN_DIED: "dead", Kind.EXPIRED: "failing"}


def note_failure(route_ids: Iterable[int], *, channel_success_at: datetime | None, now: datetime) -> None:
    """Advance the clocks of these routes of one channel, and disable those that have failed for too long."""
    routes = Route.objects.filter(pk__in=set(route_ids))
    routes.filter(failing_since__isnull=False).update(
        failing_since=F("failing_since") + _uncounted(channel_success_at, now), last_failure_at=now
    )
    routes.filter(failing_since__isnull=True).update(failing_since=now, last_failure_at=now)
    _disable(routes.filter(failing_since__lte=now - FAILING_AFTER), FAILING, Kind.EXPIRED, now=now)


def _uncounted(channel_success_at: datetime | None, now: datetime) -> Case:
    """Return the part of the time since the last failure that does not count against the route."""
    since_last = ExpressionWrapper(Value(now, DateTimeField()) - F("last_failure_at"), DurationField())
    counted = Least(since_last, Value(MAX_COUNTED, DurationField()))
    did_others_arrive = Q(last_failure_at__lt=channel_success_at) if channel_success_at else Q(pk__in=[])
    return Case(
        When(did_others_arrive, then=ExpressionWrapper(since_last - counted, DurationField())),
        default=since_last,
        output_field=DurationField(),
    )


def disable_dead(route_id: int, generation: int, address_digest: bytes, code: str, *, now: datetime) -> None:
    """Disable a route whose token is dead, if its address is still the one of the push.

    The client may have registered a new token meanwhile. After a fail-over, another route may have the id.
    """
    dead = Route.objects.filter(pk=route_id, generation=generation, address_digest=address_digest)
    _disable(dead, code, Kind.TOKEN_DIED, now=now)


def active_of(route_ids: Collection[int]) -> set[int]:
    """Return those of these routes that are active."""
    return set(Route.objects.filter(pk__in=route_ids, state=Route.State.ACTIVE).values_list("pk", flat=True))


def _disable(routes: QuerySet[Route], reason: str, kind: RegistrationEvent.Kind, *, now: datetime) -> None:
    ids = list(routes.filter(state=Route.State.ACTIVE).select_for_update(no_key=True).values_list("pk", flat=True))
    if ids:
        Route.objects.filter(pk__in=ids).update(state=Route.State.DISABLED, disabled_reason=reason, disabled_at=now)
        record_events(ids, kind, now=now)
        count(ROUTES_DISABLED, {(_REASONS[kind],): len(ids)})


def record_events(route_ids: Collection[int], kind: RegistrationEvent.Kind, *, now: datetime) -> None:
    """Write an event about each of these routes, under the pseudonym of its registration or else its own."""
    named = Coalesce("registration__pseudonym", "pseudonym")
    routes = Route.objects.filter(pk__in=route_ids).order_by("pk").annotate(named=named)
    RegistrationEvent.objects.bulk_create(
        RegistrationEvent.about(route, kind, pseudonym=route.named, at=now)
        for route in routes.only("token_type", "app_topic", "bridge")
        if route.named
    )


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
    record_events(ids, Kind.REVIVED, now=now)
    return len(ids)
