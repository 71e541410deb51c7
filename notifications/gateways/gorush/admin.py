"""The pages of error rules, which operators may change, and of the errors that no rule knows.

Every change leaves a log entry that says what was there before, because a wrong rule can stop a channel or disable
tokens.
"""

from typing import Any, ClassVar
from urllib.parse import urlencode

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import models
from django.db.models import Max, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.views.decorators.debug import sensitive_post_parameters
from unfold.admin import ModelAdmin
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from kit.admin.columns import age, link, moment, state, word, yes_no
from kit.admin.editing import Told, UnhurriedForm
from kit.admin.facts import FactAdmin, Narrowed
from kit.admin.filters import WordFilter, during
from notifications.gateways.gorush.errors import UNKNOWN, classify
from notifications.gateways.gorush.models import GatewayErrorRule, GatewayPlatform, UnknownGatewayError
from notifications.gateways.gorush.platforms import NAMES
from notifications.gateways.gorush.redaction import longest_literal, without_token
from notifications.gateways.gorush.rules_file import POSITION_STEP, TOKEN_TYPES
from notifications.gateways.gorush.rules_table import current_rules, rule_of

EDITED = (
    *("position", "platform", "match", "text", "outcome", "code"),
    *("is_guarded", "retry_base_seconds", "is_enabled", "remark"),
)
MAX_TRIED_LENGTH = 10_000


@admin.register(GatewayErrorRule)
class GatewayErrorRuleAdmin(Told, Narrowed, ModelAdmin):  # type: ignore[misc]  # unfold has no types
    form = UnhurriedForm
    edited = EDITED
    list_display = (
        *("shown_text", "position", "is_enabled", word("platform"), word("match")),
        *(state("outcome", "class"), "code", yes_no("is_guarded", "guarded"), "retry_base_seconds", word("origin")),
    )
    list_editable = ("position", "is_enabled")
    list_filter = ("platform", ("outcome", WordFilter), ("origin", WordFilter), "is_enabled")
    list_per_page = 20  # each row is a form, and a hundred of them take a third of a second
    search_fields = ("text", "code", "remark")
    fields = (*EDITED, "origin", "updated_at")
    readonly_fields = ("origin", "updated_at")
    formfield_overrides: ClassVar[Any] = {models.TextField: {"widget": UnfoldAdminTextInputWidget}}
    change_list_template = "admin/notifications/gatewayerrorrule/change_list.html"

    @admin.display(description="text", ordering="text")
    def shown_text(self, rule: GatewayErrorRule) -> str:
        return rule.text or "(no text)"

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Put a new rule at the end, unless the link that leads here says otherwise: an unknown error passed all other
        rules.
        """
        last = GatewayErrorRule.objects.aggregate(last=Max("position"))["last"] or 0
        return {"position": last + POSITION_STEP, **super().get_changeform_initial_data(request)}

    def get_changelist_form(self, request: HttpRequest, **kwargs: Any) -> Any:
        return super().get_changelist_form(request, form=UnhurriedForm, **kwargs)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Allow to delete only rules that operators made.

        A rule of the file would come back with the next `load_error_rules`, but it can be switched off.
        """
        return super().has_delete_permission(request, obj) and (obj is None or obj.seed_key is None)

    def save_model(self, request: HttpRequest, obj: GatewayErrorRule, form: Any, change: bool) -> None:
        if form.changed_data or not change:
            obj.origin = GatewayErrorRule.Origin.OPERATOR
        super().save_model(request, obj, form, change)

    def get_urls(self) -> list[URLPattern]:
        trying = path("try/", self.admin_site.admin_view(self.try_view), name="notifications_gatewayerrorrule_try")
        return [trying, *super().get_urls()]

    # The pasted text may hold a device token. It is sent by POST, and stored and logged nowhere.
    @method_decorator(sensitive_post_parameters("error"))
    def try_view(self, request: HttpRequest) -> HttpResponse:
        """Show which rule an error text falls under."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        form = TriedErrorForm(request.POST if request.method == "POST" else None)
        is_tried = form.is_valid()
        context = {
            **self.admin_site.each_context(request),
            "title": "Try an error text",
            "form": form,
            "is_tried": is_tried,
            "rule": matching_rule(**form.cleaned_data) if is_tried else None,
        }
        return TemplateResponse(request, "admin/notifications/gatewayerrorrule/try.html", context)


class TriedErrorForm(forms.Form):
    platform = forms.ChoiceField(choices=[(value, value) for value in NAMES.values()], widget=UnfoldAdminSelectWidget)
    error = forms.CharField(
        required=False,
        max_length=MAX_TRIED_LENGTH,
        label="Error text",
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 4}),
    )


def matching_rule(platform: str, error: str) -> GatewayErrorRule | None:
    """Return the row that decides what ``error`` means, as the table is now."""
    text = without_token(error, "")
    token_type = TOKEN_TYPES[platform] or 0
    rows = GatewayErrorRule.objects.filter(is_enabled=True).order_by("position", "pk")
    return next((row for row in rows if classify(token_type, text, [rule_of(row)]) is not UNKNOWN), None)


def rule_url(error: UnknownGatewayError) -> str:
    """Return the address of the form for a new rule, filled in with what is known of the error."""
    known = {"platform": error.platform, "match": "contains", "text": longest_literal(error.signature)}
    return f"{reverse('admin:notifications_gatewayerrorrule_add')}?{urlencode(known | {'outcome': 'transient'})}"


@admin.register(UnknownGatewayError)
class UnknownGatewayErrorAdmin(FactAdmin):
    list_display = (
        *("__str__", "platform", "count", age("last_seen_at", "last seen"), age("first_seen_at", "first seen")),
        *("read_as", link(rule_url, "rule", "make a rule of it")),
    )
    list_filter = ("platform", during("last_seen_at"))
    ordering = ("-last_seen_at", "-pk")
    shown: ClassVar[Any] = {
        "Error": (
            *("signature", "platform", "count", moment("first_seen_at", "first seen")),
            *(moment("last_seen_at", "last seen"), "read_as", link(rule_url, "rule", "make a rule of it")),
        )
    }

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        current_rules().refresh()
        return super().get_queryset(request)

    @admin.display(description="read by now as")
    def read_as(self, error: UnknownGatewayError) -> str:
        """Return how the error would be read now, because a rule may have been made meanwhile."""
        token_type = TOKEN_TYPES[GatewayPlatform(error.platform)] or 0
        rule = classify(token_type, error.signature, current_rules().rules)
        return f"{rule.outcome} ({rule.code})"
