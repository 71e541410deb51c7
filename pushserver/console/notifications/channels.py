"""Apps in the console, each on one platform: what halts it, and what an operator can do about it."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.contrib.postgres.expressions import ArraySubquery
from django.db import transaction
from django.db.models import Case, IntegerField, OuterRef, Q, QuerySet, Subquery, TextField, Value, When
from django.db.models.functions import Coalesce
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from unfold.admin import ModelAdmin
from unfold.widgets import UnfoldAdminTextInputWidget

from kit.db.clock import HOUR, database_now
from kit.display import counted, exact
from notifications.messages import AppKey
from notifications.models import Channel, Halt, Halts
from notifications.queues import halts, queues
from notifications.queues.breakers import BY_OPERATOR, FAILING, record_events
from notifications.queues.capacity import limits_of
from notifications.queues.queues import Queues
from pushserver.console.toolkit.columns import NOTHING, coarse_age, moment, number, state, word
from pushserver.console.toolkit.facts import FactPage
from pushserver.console.toolkit.labels import label
from pushserver.console.toolkit.lists import choices
from pushserver.console.toolkit.operations import Done, Operation, OperationPage, confirm, done
from pushserver.console.toolkit.related import Link
from pushserver.console.toolkit.times import relative
from registrations.messages import has_topic
from registrations.models import RegistrationEvent, Route

Kind = Halt.Kind
RUNNING = "running"
# Undoing offers this much time before the trip, because tokens die for a while before the breaker notices.
UNDO_FROM = HOUR


# What halts an app ----------------------------------------------------------------------------------------------------
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


def halted_apps() -> dict[AppKey, Halt]:
    """Return the apps that are paused or tripped, each with its halt."""
    rows = Halt.objects.in_force().filter(kind__in=[Kind.PAUSED, Kind.TRIPPED]).order_by("-kind")
    return {AppKey(row.token_type or 0, row.app_topic): row for row in rows}


def covering(gateway: str, app: AppKey) -> Halts:
    """Return the halts of all times that kept, or keep, pushes to an app through a gateway from being sent."""
    at_app = Q(kind__in=[Kind.PAUSED, Kind.TRIPPED], token_type=app.token_type, app_topic=app.app_topic)
    return Halt.objects.filter(Q(kind=Kind.DRAINED) | Q(kind=Kind.UNREACHABLE, gateway=gateway) | at_app)


# Operations -----------------------------------------------------------------------------------------------------------
class AppOperation(Operation):
    """An operation on one app, though operations in general can be on several rows."""

    permission = "notifications.operate_channel"

    def facts(self, rows: Sequence[Channel]) -> Mapping[str, object]:
        return {"app": rows[0]}


class Begin(AppOperation):
    """An operation that begins a halt of this kind."""

    kind: ClassVar[Halt.Kind]
    message: ClassVar[str]

    @classmethod
    def fits(cls, row: Any) -> bool:
        return cls.kind not in row.halts

    def run(self, rows: Sequence[Channel], *, by: str) -> Done:
        why = self.cleaned_data["why"]
        is_change = halts.begin(self.kind, _key(rows[0]), by=by, reason=why, now=database_now())
        already = f"Nothing was changed: {rows[0]} is {self.kind} already."
        return done(is_change, self.message, already)


class End(AppOperation):
    """An operation that ends a halt of this kind. An app may have one of the other kind, too."""

    kind: ClassVar[Halt.Kind]
    other_kind: ClassVar[Halt.Kind]
    message: ClassVar[str]

    @classmethod
    def fits(cls, row: Any) -> bool:
        return cls.kind in row.halts

    def facts(self, rows: Sequence[Channel]) -> Mapping[str, object]:
        own, of_all = _key(rows[0]), queues.load().rows.items()
        waiting = sum(row.waiting_count for key, row in of_all if (key.token_type, key.app_topic) == own)
        return {**super().facts(rows), "waiting": waiting}

    def touched(self, rows: Sequence[Channel]) -> Iterable[str]:
        yield from super().touched(rows)
        key = _key(rows[0])
        if Halt.objects.in_force().filter(kind=self.other_kind, **key._asdict()).exists():
            yield f"It is also {self.other_kind}, which does not end: nothing is sent before that does."

    def run(self, rows: Sequence[Channel], *, by: str) -> Done:
        is_change = halts.end(self.kind, _key(rows[0]), by=by, now=database_now())
        ended = f"Nothing was changed: {rows[0]} is not {self.kind}, or not any more."
        return done(is_change, self.message, ended)


class Pause(Begin):
    label, message = "Pause", "Paused."
    kind = Kind.PAUSED
    effects = ("Nothing is sent to {app} until somebody resumes it. What comes for it waits.",)


class Trip(Begin):
    label, message = "Trip", "Tripped."
    kind = Kind.TRIPPED
    effects = ("Nothing is sent to {app} but one push now and then, until one arrives. What comes for it waits.",)


class Resume(End):
    label, message = "Resume", "Resumed."
    kind, other_kind = Kind.PAUSED, Kind.TRIPPED
    effects = ("Notifications that wait for {app}: {waiting}. Its pause ends, and they are sent.",)


class CloseBreaker(End):
    label, message = "Close the breaker", "Closed the breaker."
    kind, other_kind = Kind.TRIPPED, Kind.PAUSED
    effects = ("Notifications that wait for {app}: {waiting}. They are sent without waiting for a probe.",)


class Undo(AppOperation):
    label = "Undo disabling"
    preview_label = "Show how many"
    since = forms.DateTimeField(
        help_text="UTC. Tokens that died since then come back to life.", widget=UnfoldAdminTextInputWidget
    )
    field_order = ("since", "why")

    def touched(self, rows: Sequence[Channel]) -> Iterable[str]:
        self.is_valid()  # a preview has no reason yet
        since = self.cleaned_data.get("since") if self.is_bound else None
        count = disabled_since(_key(rows[0]), since).count() if since else 0
        yield f"Addresses of {rows[0]} that died since then, and would be active again: {count}."

    def run(self, rows: Sequence[Channel], *, by: str) -> Done:  # noqa: ARG002 - the log entry names who
        since = self.cleaned_data["since"]
        count = undo_disabling(_key(rows[0]), since, now=database_now())
        addresses = counted(count, "address", "addresses")
        return Done(f"Undid the disabling of {addresses} since {exact(since)}.", is_change=count > 0)


def disabled_since(key: AppKey, since: datetime) -> QuerySet[Route]:
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
def undo_disabling(key: AppKey, since: datetime, *, now: datetime) -> int:
    """Make these routes active again, because the set-up was at fault and not their tokens. Return how many.

    It is done for all of them or for none. A client that registers one of them again waits for the end of the
    transaction: some 10 s for 100 000 routes.
    """
    dead = disabled_since(key, since).select_for_update(no_key=True).order_by("pk")
    ids = list(dead.values_list("pk", flat=True))
    Route.objects.filter(pk__in=ids).update(
        state=Route.State.ACTIVE, disabled_reason="", disabled_at=None, failing_since=None
    )
    record_events(ids, RegistrationEvent.Kind.REVIVED, now=now)
    return len(ids)


OPERATIONS: dict[str, type[Operation]] = {
    "pause": Pause,
    "trip": Trip,
    "resume": Resume,
    "close": CloseBreaker,
    "undo": Undo,
}


# The page -------------------------------------------------------------------------------------------------------------


def _key(channel: Channel) -> AppKey:
    return AppKey(channel.token_type, channel.app_topic)


def _with_shares(rows: QuerySet[Channel], known: Queues) -> QuerySet[Channel]:
    """Add how much waits for the proven addresses of each app, by the last count, and how much may."""
    own = {key: Q(token_type=key.token_type, app_topic=key.app_topic) for key in known.rows if key.is_proven}
    may_wait = limits_of(known.rows)
    waiting = [When(condition, then=known.rows[key].waiting_count) for key, condition in own.items()]
    limits = [When(condition, then=may_wait[key]) for key, condition in own.items()]
    return rows.annotate(
        share_waiting=Case(*waiting, default=0, output_field=IntegerField()),
        share_limit=Case(*limits, default=None, output_field=IntegerField()),
    )


LAST_SUCCESS = coarse_age("last_success_at", "last success", queues.SUCCESS_NOTED_EVERY)
HALTED = choices(
    "halted",
    {
        "yes": ("paused or tripped", ~Q(state=RUNNING)),
        **{kind.value: (kind.value, Q(halts__contains=[kind.value])) for kind in (Kind.PAUSED, Kind.TRIPPED)},
    },
)


@admin.register(Channel)
class ChannelAdmin(FactPage, ModelAdmin):  # type: ignore[misc]  # unfold has no types
    """The page of apps. Nobody edits a row: each operation is a use case with its own permission, page and log
    entry.
    """

    # What few rows have stands behind the state, so that most rows have no cell without a value.
    list_display = ("app", "what_halts_it", LAST_SUCCESS, "waits")
    list_filter = (HALTED, "token_type")
    ordering: ClassVar[Any] = ("token_type", "app_topic")
    actions = None
    shown: ClassVar[Any] = {
        "App": (word("get_token_type_display", "platform"), word("app_topic", "app")),
        "State": (
            state("state"),
            "all_halts",
            moment("since"),
            word("reason"),
            word("changed_by", "by"),
            moment("next_probe_at", "next probe"),
            LAST_SUCCESS,
            moment("deaths_distrusted_since", "deaths not believed since"),
        ),
        "Proven addresses": (
            number("share_waiting", "waits, as counted last"),
            number("share_limit", "may wait before new requests are refused"),
        ),
    }

    def get_queryset(self, request: HttpRequest) -> QuerySet[Channel]:
        """Return the apps with what halts them and how much waits for each."""
        return _with_shares(with_halts(super().get_queryset(request)), queues.load())

    @admin.display(description="what halts it")
    def all_halts(self, channel: Any) -> str:
        return ", ".join(channel.halts) or NOTHING

    @admin.display(description="app")
    def app(self, channel: Channel) -> str:
        return str(channel)

    @admin.display(description="state")
    def what_halts_it(self, channel: Any) -> str:
        """Return the state, with who halted the app, when and why, and since when its dead tokens are not believed."""
        shown = [label(channel.state)]
        if channel.state != RUNNING:
            by = f"by {channel.changed_by} " if channel.changed_by else ""
            shown.append(format_html("{}{}: {}", by, relative(channel.since), channel.reason or "no reason given"))
        if since := channel.deaths_distrusted_since:
            shown.append(format_html("deaths not believed, since {}", relative(since)))
        return format_html("<span>{}</span>", format_html_join(" ", "{}", ([each] for each in shown)))

    @admin.display(description="waits")
    def waits(self, channel: Any) -> str:
        """Return how much waits for proven addresses, and how much may before new requests are refused."""
        of_all = "" if channel.share_limit is None else f" of {channel.share_limit:,}"
        return f"{channel.share_waiting:,}{of_all}"

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.operate)
        name = "notifications_channel_operate"
        return [path("<int:channel_id>/operate/<slug:operation>/", view, name=name), *super().get_urls()]

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> Any:
        name = "admin:notifications_channel_operate"
        row = context["original"]
        may = request.user.has_perm(AppOperation.permission)
        context["operations"] = [
            Link(form.label, reverse(name, args=[row.pk, key]))
            for key, form in OPERATIONS.items()
            if may and form.fits(row)
        ]
        return super().render_change_form(request, context, *args, **kwargs)

    def operate(self, request: HttpRequest, channel_id: int, operation: str) -> HttpResponse:
        channel = with_halts(Channel.objects.filter(pk=channel_id)).first()
        form_class = OPERATIONS.get(operation)
        if channel is None or form_class is None:
            raise Http404
        back = reverse("admin:notifications_channel_change", args=[channel_id])
        page = OperationPage(f"{form_class.label}: {channel}", request.path, back)
        halted_at = getattr(channel, "since", None) or database_now()
        return confirm(request, form_class, [channel], page, since=halted_at - UNDO_FROM)
