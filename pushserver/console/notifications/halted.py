"""Halts as the console and the API show them: of each app, and of one notification."""

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import OuterRef, Q, QuerySet, Subquery, TextField, Value
from django.db.models.functions import Coalesce

from notifications.messages import ChannelKey
from notifications.models import Channel, Halt, Halts

Kind = Halt.Kind
RUNNING = "running"


def with_halts(apps: QuerySet[Channel]) -> QuerySet[Channel]:
    """Return the apps with their halts: ``state``, and with it who halted the app, why and since when.

    An app that is both paused and tripped is shown as paused, because only a person ends a pause; ``halts`` has both
    words.
    """
    own = Halt.objects.in_force().filter(token_type=OuterRef("token_type"), app_topic=OuterRef("app_topic"))
    own = own.order_by("kind")
    first = {
        name: Subquery(own.values(column)[:1])
        for name, column in (("reason", "reason"), ("changed_by", "by"), ("since", "since"))
    }
    return apps.annotate(
        state=Coalesce(Subquery(own.values("kind")[:1]), Value(RUNNING), output_field=TextField()),
        halts=ArraySubquery(own.values("kind")),
        next_probe_at=Subquery(own.filter(kind=Kind.TRIPPED).values("next_probe_at")[:1]),
        **first,
    )


def halted_apps() -> dict[ChannelKey, Halt]:
    """Return the apps that are paused or tripped, each with its halt."""
    rows = Halt.objects.in_force().filter(kind__in=[Kind.PAUSED, Kind.TRIPPED]).order_by("-kind")
    return {ChannelKey(row.token_type or 0, row.app_topic): row for row in rows}


def covering(gateway: str, app: ChannelKey) -> Halts:
    """Return the halts of all times that kept, or keep, pushes to an app through a gateway from being sent."""
    at_app = Q(kind__in=[Kind.PAUSED, Kind.TRIPPED], token_type=app.token_type, app_topic=app.app_topic)
    return Halt.objects.filter(Q(kind=Kind.DRAINED) | Q(kind=Kind.UNREACHABLE, gateway=gateway) | at_app)
