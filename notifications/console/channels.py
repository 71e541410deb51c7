"""Channels in the console: what is halted and why, and what an operator can do about it."""

from datetime import timedelta
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from unfold.admin import ModelAdmin

from notifications import channels, disabling
from notifications.messages import ChannelKey
from notifications.models import Channel
from registrations.console.columns import age, moment, word
from registrations.console.facts import ReadOnly

# Tokens die for some time before the breaker notices.
UNDO_FROM = timedelta(hours=1)


class PauseForm(forms.Form):
    label = "Pause"
    why = forms.CharField(max_length=200, help_text="For whoever finds it paused.")

    def touched(self, key: ChannelKey) -> str:
        return f"Nothing is sent to {_name(key)} until somebody resumes it. What comes for it waits."

    def run(self, key: ChannelKey, by: str) -> str:
        channels.pause(key, by=by, why=self.cleaned_data["why"], now=timezone.now())
        return f"Paused: {self.cleaned_data['why']}"


class ResumeForm(forms.Form):
    label = "Resume"
    why = forms.CharField(max_length=200, required=False, help_text="What was mended, if anything.")

    def touched(self, key: ChannelKey) -> str:
        return f"{channels.parked(key).count()} notifications wait for {_name(key)} and will be sent."

    def run(self, key: ChannelKey, by: str) -> str:
        change = channels.resume(key, by=by, why=self.cleaned_data["why"], now=timezone.now())
        return f"Resumed, {change.released_count} notifications released. {self.cleaned_data['why']}".strip()


class UndoForm(forms.Form):
    label = "Undo disabling"
    since = forms.DateTimeField(help_text="UTC. Tokens that died since then come back to life.")

    def touched(self, key: ChannelKey) -> str:
        count = disabling.disabled_since(key, self.cleaned_data["since"]).count() if self.is_valid() else 0
        return f"{count} addresses of {_name(key)} that died since then would be active again."

    def run(self, key: ChannelKey, by: str) -> str:  # noqa: ARG002 - the log entry names who
        since = self.cleaned_data["since"]
        count = disabling.undo_disabling(key, since, now=timezone.now())
        return f"Undid the disabling of {count} addresses since {since:%Y-%m-%d %H:%M:%S} UTC"


FORMS: dict[str, type[PauseForm | ResumeForm | UndoForm]] = {"pause": PauseForm, "resume": ResumeForm, "undo": UndoForm}


def _key(channel: Channel) -> ChannelKey:
    return ChannelKey(channel.token_type, channel.apn_topic)


def _name(key: ChannelKey) -> str:
    return str(Channel(**key._asdict()))


@admin.register(Channel)
class ChannelAdmin(ReadOnly, ModelAdmin):  # type: ignore[misc]  # unfold has no types
    """Nobody edits a row: each operation is a use case of its own, with its own permission, page and log entry."""

    change_form_template = "admin/notifications/channel/change_form.html"
    list_display = (
        "__str__",
        word("state"),
        word("reason"),
        word("changed_by", "by"),
        age("since"),
        age("last_success_at", "last success"),
    )
    list_filter = ("state", "token_type")
    ordering: ClassVar[Any] = ("token_type", "apn_topic")
    actions = None
    fields: ClassVar[Any] = (
        word("get_token_type_display", "platform"),
        word("apn_topic", "app"),
        word("state"),
        word("reason"),
        word("changed_by", "by"),
        moment("since"),
        moment("next_probe_at", "next probe"),
        moment("last_success_at", "last success"),
    )
    readonly_fields: ClassVar[Any] = fields

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.operate)
        name = "notifications_channel_operate"
        return [path("<int:channel_id>/operate/<slug:operation>/", view, name=name), *super().get_urls()]

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> Any:
        may_operate = request.user.has_perm("notifications.operate_channel")
        context["operations"] = FORMS.items() if may_operate else ()
        return super().render_change_form(request, context, *args, **kwargs)

    def operate(self, request: HttpRequest, channel_id: int, operation: str) -> HttpResponse:
        """Say what would be touched, and do it when that is confirmed."""
        channel = Channel.objects.filter(pk=channel_id).first()
        if channel is None or operation not in FORMS:
            raise Http404
        if not request.user.has_perm("notifications.operate_channel"):
            raise PermissionDenied
        page = reverse("admin:notifications_channel_change", args=[channel_id])
        form = FORMS[operation](request.POST or None, initial={"since": channel.since - UNDO_FROM})
        if "confirmed" in request.POST and form.is_valid():
            done = form.run(_key(channel), request.user.get_username())
            self.log_change(request, channel, done)
            messages.success(request, done)
            return redirect(page)
        facts = {
            "title": f"{form.label}: {channel}",
            "form": form,
            "touched": form.touched(_key(channel)),
            "page": page,
        }
        context = {**self.admin_site.each_context(request), "opts": self.opts, **facts}
        return TemplateResponse(request, "admin/notifications/channel/operate.html", context)
