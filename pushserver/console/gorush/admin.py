"""The pages of error rules, which operators may change, and of the errors that no rule matches.

The rules that come with the server are in `notifications/gateways/gorush/rules/error_rules.yaml`. Every change leaves a
log entry with the earlier values, because a wrong rule can stop an app or disable tokens.
"""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from math import inf
from typing import Any, ClassVar, LiteralString
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import OperationalError, connection, models, transaction
from django.db.models import Max, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.debug import sensitive_post_parameters
from unfold.admin import ModelAdmin
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from kit.db.base import fetch
from kit.display import counted
from notifications.gateways.gorush.errors import (
    NAMES,
    POSITION_STEP,
    TOKEN_TYPES,
    UNKNOWN,
    ErrorRule,
    classify,
    rule_of,
    signature,
    without_token,
)
from notifications.gateways.gorush.models import GatewayErrorRule, UnknownGatewayError, current_rules
from notifications.messages import Outcome
from pushserver.console.toolkit.columns import age, moment, state, word
from pushserver.console.toolkit.editing import LoggedEdits, OptimisticForm
from pushserver.console.toolkit.facts import FactAdmin, Narrowed
from pushserver.console.toolkit.lists import WordFilter, during
from pushserver.console.toolkit.operations import Operation, OperationPage

EDITED = (
    *("position", "platform", "match", "text", "outcome", "code"),
    *("is_guarded", "retry_base_seconds", "is_enabled", "remark"),
)
MAX_TRIED_LENGTH = 10_000
PLACEHOLDER = re.compile(r"<(?:token|email|hex|blob|n)>")  # in a signature
NOT_SENT_AGAIN = ("csrfmiddlewaretoken", "confirmed", "why")
# The effects of rules that can disable tokens or stop an app. Such a rule is confirmed, with a reason.
CONFIRMED = {
    Outcome.DEAD: "Each address with a matching error is disabled: nothing is sent there until its app registers "
    "again.",
    Outcome.CONFIG: "A push with a matching error is tried again after a minute. Several such errors in a row stop its "
    "app.",
}
# The fields that decide which errors a rule matches, and what follows.
DECISIVE = frozenset({"position", "platform", "match", "text", "outcome", "is_guarded", "is_enabled"})


class RuleForm(OptimisticForm):
    """The form of one rule. For a text that has a rule already, its error links to that rule."""

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        known = GatewayErrorRule.objects.exclude(pk=self.instance.pk).filter(
            platform=cleaned.get("platform"),
            match=cleaned.get("match"),
            text__iexact=(cleaned.get("text") or "").strip(),
        )
        if row := known.first():
            self.add_error(
                "text", format_html('There is already a rule for this text: <a href="{}">{}</a>', url_of(row), row)
            )
        return cleaned


class ConfirmRule(Operation):
    """The reason for a rule that can disable tokens or stop an app."""

    label = "Save the rule"
    permission = "notifications.change_gatewayerrorrule"
    is_destructive = True

    def touched(self, rows: Sequence[GatewayErrorRule]) -> Iterable[str]:
        yield f"{rows[0]}."
        yield preview(rows[0], now=timezone.now())
        yield CONFIRMED[Outcome(rows[0].outcome)]
        yield "Workers apply the rule within seconds."


def url_of(rule: GatewayErrorRule) -> str:
    return reverse("admin:notifications_gatewayerrorrule_change", args=[rule.pk])


@admin.register(GatewayErrorRule)
class GatewayErrorRuleAdmin(LoggedEdits, Narrowed, ModelAdmin):  # type: ignore[misc]  # unfold has no types
    form = RuleForm
    edited = EDITED
    list_display = (
        *("shown_text", "position", "is_enabled", word("platform"), state("outcome", "class"), word("code")),
        word("origin"),
    )
    list_filter = ("platform", ("outcome", WordFilter), ("origin", WordFilter), "is_enabled")
    search_fields = ("text", "code", "remark")
    fields = (*EDITED, "origin", "updated_at")
    readonly_fields = ("origin", "updated_at")
    formfield_overrides: ClassVar[Any] = {models.TextField: {"widget": UnfoldAdminTextInputWidget}}
    change_list_template = "admin/notifications/gatewayerrorrule/change_list.html"

    @admin.display(description="text", ordering="text")
    def shown_text(self, rule: GatewayErrorRule) -> str:
        """Return the text of a rule and how it matches. Its page shows the rest."""
        return f"{rule.match}: {rule.text}" if rule.text else f"{rule.match} (no text)"

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Put a new rule at the end, unless the link says otherwise: an unknown error passed all other rules."""
        last = GatewayErrorRule.objects.aggregate(last=Max("position"))["last"] or 0
        return {"position": last + POSITION_STEP, **super().get_changeform_initial_data(request)}

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether an operator made the rule.

        A rule of the file would come back with the next `migrate`. It can be switched off instead.
        """
        return super().has_delete_permission(request, obj) and (obj is None or obj.seed_key is None)

    def changeform_view(self, request: HttpRequest, object_id: str | None = None, *args: Any, **kwargs: Any) -> Any:
        """Ask for a reason, and show what the rule would have matched, before a rule is saved that can do harm."""
        asked = self._asked(request, object_id) if request.method == "POST" else None
        return asked or super().changeform_view(request, object_id, *args, **kwargs)

    def _asked(self, request: HttpRequest, object_id: str | None) -> HttpResponse | None:
        """Return the page that asks for the reason, or None when none is needed or it was given."""
        row = self.get_object(request, object_id) if object_id else None
        may = self.has_change_permission(request, row) if row else self.has_add_permission(request)
        form = self.get_form(request, row, change=row is not None)(request.POST, instance=row)
        if not may or not form.is_valid() or not self._is_to_be_confirmed(form):
            return None
        why = ConfirmRule(request.POST if "confirmed" in request.POST else None)
        if why.is_valid():
            return None
        all_rules = reverse("admin:notifications_gatewayerrorrule_changelist")
        sent = [(name, value) for name, values in request.POST.lists() for value in values]
        context = {
            **self.admin_site.each_context(request),
            "title": "Confirm the rule",
            "page": OperationPage("", request.get_full_path(), all_rules),
            "form": why,
            "touched": why.touched([form.instance]),
            "sent": [(name, value) for name, value in sent if name not in NOT_SENT_AGAIN],
        }
        return TemplateResponse(request, "console/confirm.html", context)

    def _is_to_be_confirmed(self, form: Any) -> bool:
        is_changed = form.instance.pk is None or DECISIVE & set(form.changed_data)
        return bool(is_changed) and form.instance.outcome in CONFIRMED and form.instance.is_enabled

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:
        message = super().construct_change_message(request, form, formsets, add)
        why = request.POST.get("why") if "confirmed" in request.POST else ""
        return f"{message}. Why: {why}" if why else message

    def save_model(self, request: HttpRequest, obj: GatewayErrorRule, form: Any, change: bool) -> None:
        if form.changed_data or not change:
            obj.origin = GatewayErrorRule.Origin.OPERATOR
        super().save_model(request, obj, form, change)
        if DECISIVE & set(form.changed_data) or not change:
            messages.info(request, preview(obj, now=timezone.now()))

    def get_urls(self) -> list[URLPattern]:
        trying = path("try/", self.admin_site.admin_view(self.try_view), name="notifications_gatewayerrorrule_try")
        return [trying, *super().get_urls()]

    # The pasted text may contain a device token. It is sent by POST, and neither stored nor logged.
    @method_decorator(sensitive_post_parameters("error"))
    def try_view(self, request: HttpRequest) -> HttpResponse:
        """Show which rule matches an error text."""
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
            "new_rule_url": new_rule_url(**form.cleaned_data) if is_tried else "",
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
    """Return the row that matches ``error`` in the present table."""
    text = without_token(error, "")
    token_type = TOKEN_TYPES.get(platform, 0)
    rows = GatewayErrorRule.objects.filter(is_enabled=True).order_by("position", "pk")
    return next((row for row in rows if classify(token_type, text, [rule_of(row)]) is not UNKNOWN), None)


def longest_literal(signature: str) -> str:
    """Return the longest part of a signature without placeholders, as the text of a new rule."""
    return max((part.strip() for part in PLACEHOLDER.split(signature)), key=len)


def new_rule_url(platform: str, error: str) -> str:
    """Return the address of the form for a new rule, filled in with the part of an error that is not of one device."""
    known = {"platform": platform, "match": "contains", "text": longest_literal(signature(error, ""))}
    return f"{reverse('admin:notifications_gatewayerrorrule_add')}?{urlencode(known | {'outcome': 'transient'})}"


# The preview ----------------------------------------------------------------------------------------------------------
# What a rule would have decided in the last day is counted from the error texts of failed attempts. These contain no
# data of one device, so a rule about such data finds nothing here. Of very many failures only the newest are read.
LOOKED_BACK = timedelta(hours=24)
MAX_LOOKED_AT = 100_000
TIMEOUT = "2s"

_FAILED: LiteralString = f"""
    WITH failed AS (
        SELECT notification_id, token_type, error FROM notifications_endedattempt
        WHERE outcome IN ('{Outcome.DEAD}', '{Outcome.CONFIG}', '{Outcome.PAYLOAD}',
            '{Outcome.TRANSIENT}', '{Outcome.AMBIGUOUS}') AND error <> ''
            AND started_at >= %(since)s
            AND id >= coalesce((
                SELECT id FROM notifications_endedattempt WHERE started_at >= %(since)s - interval '5 minutes'
                ORDER BY started_at LIMIT 1
            ), 0)
        ORDER BY id DESC LIMIT %(limit)s
    )
"""
_TEXTS: LiteralString = f"{_FAILED} SELECT token_type, error, count(*) FROM failed GROUP BY 1, 2"
_ROUTES: LiteralString = f"""
    {_FAILED}
    SELECT count(DISTINCT notification.route_id) FROM failed
    JOIN unnest(%(types)b::smallint[], %(errors)b::text[]) AS decided (token_type, error) USING (token_type, error)
    JOIN notifications_notification AS notification ON notification.id = failed.notification_id
        AND notification.ended_on >= %(since)s::date - 1
"""
NOT_KNOWN = "The number of matches is not known: the database takes too long to answer."


def preview(rule: GatewayErrorRule, *, now: datetime) -> str:
    """Return in words what this rule would have decided, at its place among the present rules."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL statement_timeout = '{TIMEOUT}'")
            found = _count(rule, now=now)
            # The caller's transaction goes on, with the usual timeout.
            cursor.execute("SET LOCAL statement_timeout TO DEFAULT")
            return found
    except OperationalError:
        return NOT_KNOWN


def _count(rule: GatewayErrorRule, *, now: datetime) -> str:
    looked_at = {"since": now - LOOKED_BACK, "limit": MAX_LOOKED_AT}
    texts = fetch(_TEXTS, looked_at)
    own = rule_of(rule)
    rules = _with(rule, own)
    decided = [row for row in texts if classify(row[0], row[1], rules) is own]
    types, errors = [row[0] for row in decided], [row[1] for row in decided]
    [(routes,)] = fetch(_ROUTES, {**looked_at, "types": types, "errors": errors}) if decided else [(0,)]
    is_partial = sum(row[2] for row in texts) >= MAX_LOOKED_AT
    among = f" (among the newest {MAX_LOOKED_AT:,} failures)" if is_partial else ""
    attempts = counted(sum(row[2] for row in decided), "attempt")
    return f"It would have matched {attempts} and {counted(routes, 'route')} in the last 24 h{among}."


def _with(rule: GatewayErrorRule, own: ErrorRule) -> list[ErrorRule]:
    """Return the rules in use with this one at its place: a new one behind all others of the same position."""
    others = GatewayErrorRule.objects.filter(is_enabled=True).exclude(pk=rule.pk)
    in_order = sorted([*others, rule], key=lambda row: (row.position, row.pk or inf))
    return [own if row is rule else rule_of(row) for row in in_order]


# Errors without a rule ------------------------------------------------------------------------------------------------
@admin.register(UnknownGatewayError)
class UnknownGatewayErrorAdmin(FactAdmin):
    list_display = (
        *("__str__", "platform", "count", age("last_seen_at", "last seen"), age("first_seen_at", "first seen")),
        *("read_as", "rule"),
    )
    list_filter = (("platform", WordFilter), during("last_seen_at"))
    ordering = ("-last_seen_at", "-pk")
    shown: ClassVar[Any] = {
        "Error": (
            *("signature", "platform", "count", moment("first_seen_at", "first seen")),
            *(moment("last_seen_at", "last seen"), "read_as", "rule"),
        )
    }

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        current_rules().refresh()
        return super().get_queryset(request)

    @admin.display(description="read by now as")
    def read_as(self, error: UnknownGatewayError) -> str:
        """Return the present reading of the error, because a rule may have been added since."""
        token_type = TOKEN_TYPES.get(error.platform, 0)
        rule = classify(token_type, error.signature, current_rules().rules)
        return f"{rule.outcome} ({rule.code})"

    @admin.display(description="rule")
    def rule(self, error: UnknownGatewayError) -> SafeString:
        """Return a link to the rule that matches the error by now, or else to the form for a new one."""
        token_type = TOKEN_TYPES.get(error.platform, 0)
        if classify(token_type, error.signature, current_rules().rules) is UNKNOWN:
            url = new_rule_url(error.platform, error.signature)
            return format_html('<a href="{}">add a rule for it</a>', url)
        found = matching_rule(error.platform, error.signature)
        return format_html('<a href="{}">its rule</a>', url_of(found)) if found else format_html("-")
