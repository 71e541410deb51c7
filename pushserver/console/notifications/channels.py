"""Channels in the console: what is halted and why, and what an operator can do about it."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.db import transaction
from django.db.models import Case, IntegerField, Q, QuerySet, When
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path, reverse
from unfold.admin import ModelAdmin
from unfold.widgets import UnfoldAdminTextInputWidget

from kit.db.clock import database_now
from kit.display import counted, exact
from notifications.messages import ChannelKey
from notifications.models import Channel, Halt
from notifications.queues import halts, queues
from notifications.queues.breakers import BY_OPERATOR, FAILING, record_events
from notifications.queues.capacity import limits_of
from notifications.queues.queues import Queues
from pushserver.console.notifications.halted import RUNNING, with_halts
from pushserver.console.toolkit.columns import NOTHING, age, coarse_age, moment, number, state, word
from pushserver.console.toolkit.facts import FactPage
from pushserver.console.toolkit.lists import Alone
from pushserver.console.toolkit.operations import Done, Operation, OperationPage, confirm
from pushserver.console.toolkit.related import Link
from registrations.messages import has_topic
from registrations.models import RegistrationEvent, Route

# Undoing offers this much time before the trip, because tokens die for a while before the breaker notices.
UNDO_FROM = timedelta(hours=1)


ALREADY = "Nothing was changed: {} is {} already."
NOT_SO = "Nothing was changed: {} is not {}, or not any more."


class ChannelOperation(Operation):
    """An operation on one channel, though operations in general can be on several rows."""

    permission = "notifications.operate_channel"


class Pause(ChannelOperation):
    label = "Pause"

    @classmethod
    def fits(cls, row: Any) -> bool:
        return Halt.Kind.PAUSED not in row.halts

    def touched(self, rows: Sequence[Channel]) -> Iterable[str]:
        yield f"Nothing is sent to {rows[0]} until somebody resumes it. What comes for it waits."

    def run(self, rows: Sequence[Channel], *, by: str) -> Done:
        is_change = halts.begin(
            halts.Kind.PAUSED, _key(rows[0]), by=by, reason=self.cleaned_data["why"], now=database_now()
        )
        return _done("Paused.", ALREADY.format(rows[0], "paused"), is_change=is_change)


class Trip(ChannelOperation):
    label = "Trip"

    @classmethod
    def fits(cls, row: Any) -> bool:
        return Halt.Kind.TRIPPED not in row.halts

    def touched(self, rows: Sequence[Channel]) -> Iterable[str]:
        yield f"Nothing is sent to {rows[0]} but one push now and then, until one arrives. What comes for it waits."

    def run(self, rows: Sequence[Channel], *, by: str) -> Done:
        is_change = halts.begin(
            halts.Kind.TRIPPED, _key(rows[0]), by=by, reason=self.cleaned_data["why"], now=database_now()
        )
        return _done("Tripped.", ALREADY.format(rows[0], "tripped"), is_change=is_change)


class Resume(ChannelOperation):
    label = "Resume"

    @classmethod
    def fits(cls, row: Any) -> bool:
        return Halt.Kind.PAUSED in row.halts

    def touched(self, rows: Sequence[Channel]) -> Iterable[str]:
        yield f"Notifications that wait for {rows[0]}: {_waiting(rows[0])}. Its pause ends, and they are sent."
        yield from _also("tripped", rows[0])

    def run(self, rows: Sequence[Channel], *, by: str) -> Done:
        is_change = halts.end(halts.Kind.PAUSED, _key(rows[0]), by=by, now=database_now())
        return _done("Resumed.", NOT_SO.format(rows[0], "paused"), is_change=is_change)


class CloseBreaker(ChannelOperation):
    label = "Close the breaker"

    @classmethod
    def fits(cls, row: Any) -> bool:
        return Halt.Kind.TRIPPED in row.halts

    def touched(self, rows: Sequence[Channel]) -> Iterable[str]:
        yield f"Notifications that wait for {rows[0]}: {_waiting(rows[0])}. They are sent without waiting for a probe."
        yield from _also("paused", rows[0])

    def run(self, rows: Sequence[Channel], *, by: str) -> Done:
        is_change = halts.end(halts.Kind.TRIPPED, _key(rows[0]), by=by, now=database_now())
        return _done("Closed the breaker.", NOT_SO.format(rows[0], "tripped"), is_change=is_change)


def _waiting(channel: Channel) -> int:
    known = queues.load()
    own = _key(channel)
    return sum(row.waiting_count for key, row in known.rows.items() if (key.token_type, key.app_topic) == own)


def _also(other: str, channel: Channel) -> Iterable[str]:
    if Halt.objects.in_force().filter(kind=other, token_type=channel.token_type, app_topic=channel.app_topic).exists():
        yield f"It is also {other}, which does not end: nothing is sent before that does."


class Undo(ChannelOperation):
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
    record_events(ids, RegistrationEvent.Kind.REVIVED, now=now)
    return len(ids)


OPERATIONS: dict[str, type[Operation]] = {
    "pause": Pause,
    "trip": Trip,
    "resume": Resume,
    "close": CloseBreaker,
    "undo": Undo,
}


def _done(message: str, otherwise: str, *, is_change: bool) -> Done:
    return Done(message if is_change else otherwise, is_change=is_change)


def _key(channel: Channel) -> ChannelKey:
    return ChannelKey(channel.token_type, channel.app_topic)


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


class HaltedFilter(Alone, admin.SimpleListFilter):
    """A filter for the channels that nothing is sent to, by what stopped them."""

    title = parameter_name = "halted"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        return [("yes", "paused or tripped"), ("paused", "paused"), ("tripped", "tripped")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:  # noqa: ARG002
        match self.value():
            case "yes":
                return queryset.exclude(state=RUNNING)
            case "paused" | "tripped" as kind:
                return queryset.filter(halts__contains=[kind])
        return queryset


@admin.register(Channel)
class ChannelAdmin(FactPage, ModelAdmin):  # type: ignore[misc]  # unfold has no types
    """The page of channels. Nobody edits a row: each operation is a use case with its own permission, page and log
    entry.
    """

    list_display = (
        "__str__",
        state("state"),
        word("reason"),
        word("changed_by", "by"),
        age("since", "since"),
        coarse_age("last_success_at", "last success", queues.SUCCESS_NOTED_EVERY),
        age("deaths_distrusted_since", "deaths not believed"),
        number("share_waiting", "waits"),
        number("share_limit", "may wait"),
    )
    list_filter = (HaltedFilter, "token_type")
    ordering: ClassVar[Any] = ("token_type", "app_topic")
    actions = None
    shown: ClassVar[Any] = {
        "Channel": (word("get_token_type_display", "platform"), word("app_topic", "app")),
        "State": (
            state("state"),
            "all_halts",
            moment("since"),
            word("reason"),
            word("changed_by", "by"),
            moment("next_probe_at", "next probe"),
            coarse_age("last_success_at", "last success", queues.SUCCESS_NOTED_EVERY),
            moment("deaths_distrusted_since", "deaths not believed since"),
        ),
        "Proven addresses": (
            number("share_waiting", "waits, as counted last"),
            number("share_limit", "may wait before new requests are refused"),
        ),
    }

    def get_queryset(self, request: HttpRequest) -> QuerySet[Channel]:
        """Return the channels with what halts them and how much waits for each."""
        return _with_shares(with_halts(super().get_queryset(request)), queues.load())

    @admin.display(description="what halts it")
    def all_halts(self, channel: Any) -> str:
        return ", ".join(channel.halts) or NOTHING

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.operate)
        name = "notifications_channel_operate"
        return [path("<int:channel_id>/operate/<slug:operation>/", view, name=name), *super().get_urls()]

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> Any:
        name = "admin:notifications_channel_operate"
        row = context["original"]
        may = request.user.has_perm(ChannelOperation.permission)
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
