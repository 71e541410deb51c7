"""Channels in the console: what is halted and why, and what an operator can do about it."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.db.models import Case, IntegerField, Q, QuerySet, When
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from unfold.admin import ModelAdmin
from unfold.widgets import UnfoldAdminTextInputWidget

from kit.admin.columns import age, moment, number, state, word
from kit.admin.facts import FactPage
from kit.admin.filters import OnlyFilter
from kit.admin.links import Link
from kit.admin.operations import Done, Operation, Place, confirm
from kit.admin.times import exact
from notifications import channels, disabling
from notifications.admission import Share, load_shares, unproven_limit
from notifications.delivery.lanes import UNPROVEN
from notifications.messages import ChannelKey
from notifications.models import Channel

# Undoing offers this much time before the trip, because tokens die for a while before the breaker notices.
UNDO_FROM = timedelta(hours=1)


ALREADY = "Nothing was changed: {} is {} already."


class ChannelOperation(Operation):
    """An operation on one channel, though operations in general can be on several rows."""

    permission = "notifications.operate_channel"


class Pause(ChannelOperation):
    label = "Pause"

    def touched(self, rows: Sequence[Channel]) -> Iterable[str]:
        yield f"Nothing is sent to {rows[0]} until somebody resumes it. What comes for it waits."

    def run(self, rows: Sequence[Channel], *, by: str) -> Done:
        why = self.cleaned_data["why"]
        return _done(channels.pause(_key(rows[0]), by=by, why=why, now=timezone.now()), "Paused.")


class Trip(ChannelOperation):
    label = "Trip"

    def touched(self, rows: Sequence[Channel]) -> Iterable[str]:
        yield f"Nothing is sent to {rows[0]} but one push now and then, until one arrives. What comes for it waits."

    def run(self, rows: Sequence[Channel], *, by: str) -> Done:
        why = self.cleaned_data["why"]
        return _done(channels.trip(_key(rows[0]), by=by, reason=why, now=timezone.now()), "Tripped.")


class Resume(ChannelOperation):
    label = "Resume"

    def touched(self, rows: Sequence[Channel]) -> Iterable[str]:
        yield f"{channels.parked(_key(rows[0])).count()} notifications wait for {rows[0]} and will be sent."

    def run(self, rows: Sequence[Channel], *, by: str) -> Done:
        change = channels.resume(_key(rows[0]), by=by, why=self.cleaned_data["why"], now=timezone.now())
        return _done(change, f"Resumed, {change.released_count} notifications released.")


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
        count = disabling.disabled_since(_key(rows[0]), since).count() if since else 0
        yield f"{count} addresses of {rows[0]} that died since then would be active again."

    def run(self, rows: Sequence[Channel], *, by: str) -> Done:  # noqa: ARG002 - the log entry names who
        since = self.cleaned_data["since"]
        count = disabling.undo_disabling(_key(rows[0]), since, now=timezone.now())
        return Done(f"Undid the disabling of {count} addresses since {exact(since)}.", is_change=count > 0)


OPERATIONS: dict[str, type[Operation]] = {"pause": Pause, "trip": Trip, "resume": Resume, "undo": Undo}


def _done(change: channels.Change, message: str) -> Done:
    channel = Channel(**change.channel._asdict())
    return Done(message) if change.is_change else Done(ALREADY.format(channel, change.before), is_change=False)


def _key(channel: Channel) -> ChannelKey:
    return ChannelKey(channel.token_type, channel.apn_topic)


def _with_shares(rows: QuerySet[Channel], shares: Sequence[Share]) -> QuerySet[Channel]:
    own = [(Q(**share.lane._asdict(), last_success_at__isnull=False), share) for share in shares]
    common = [(Q(token_type=share.lane.token_type), share) for share in shares if share.lane.apn_topic == UNPROVEN]
    waiting = [When(condition, then=share.waiting) for condition, share in own + common]
    limits = [When(condition, then=share.limit) for condition, share in own]
    return rows.annotate(
        share_waiting=Case(*waiting, default=0, output_field=IntegerField()),
        share_limit=Case(*limits, default=unproven_limit(), output_field=IntegerField()),
    )


class HaltedFilter(OnlyFilter):
    """A filter for the channels that nothing is sent to, whoever stopped them."""

    title = parameter_name = "halted"
    words = "paused or tripped"
    condition = ~Q(state=Channel.State.RUNNING)


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
        age("last_success_at", "last success"),
        number("share_waiting", "waits in its share"),
        number("share_limit", "may wait"),
    )
    list_filter = (HaltedFilter, "state", "token_type")
    ordering: ClassVar[Any] = ("token_type", "apn_topic")
    actions = None
    shown: ClassVar[Any] = {
        "Channel": (word("get_token_type_display", "platform"), word("apn_topic", "app")),
        "State": (
            state("state"),
            moment("since"),
            word("reason"),
            word("changed_by", "by"),
            moment("next_probe_at", "next probe"),
            moment("last_success_at", "last success"),
        ),
        "Share of what may wait": (
            number("share_waiting", "waits in its share"),
            number("share_limit", "may wait before new requests are refused"),
        ),
    }

    def get_queryset(self, request: HttpRequest) -> QuerySet[Channel]:
        """Return the channels with how full their shares are. Those that are not proven share one on each platform."""
        return _with_shares(super().get_queryset(request), load_shares(now=timezone.now()))

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.operate)
        name = "notifications_channel_operate"
        return [path("<int:channel_id>/operate/<slug:operation>/", view, name=name), *super().get_urls()]

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> Any:
        name = "admin:notifications_channel_operate"
        row = context["original"]
        may = request.user.has_perm(ChannelOperation.permission)
        context["operations"] = [
            Link(form.label, reverse(name, args=[row.pk, key])) for key, form in OPERATIONS.items() if may
        ]
        return super().render_change_form(request, context, *args, **kwargs)

    def operate(self, request: HttpRequest, channel_id: int, operation: str) -> HttpResponse:
        channel = Channel.objects.filter(pk=channel_id).first()
        form_class = OPERATIONS.get(operation)
        if channel is None or form_class is None:
            raise Http404
        back = reverse("admin:notifications_channel_change", args=[channel_id])
        place = Place(f"{form_class.label}: {channel}", request.path, back)
        return confirm(request, form_class, [channel], place, since=channel.since - UNDO_FROM)
