"""API tokens in the console: the list, the form for a new one, and revoking. A token is shown once."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.cache import add_never_cache_headers
from unfold.admin import ModelAdmin
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget

from pushserver import tokens
from pushserver.console.pages.labels import ALREADY_REVOKED, REVOKE_EFFECT, REVOKE_IS_FINAL
from pushserver.console.toolkit.facts import Narrowed
from pushserver.console.toolkit.lists.columns import age, moment, word
from pushserver.console.toolkit.operations import Done, Operated, Operation
from pushserver.models import ApiToken


@admin.display(description="scopes")
def scope_names(token: ApiToken) -> str:
    """Return the scopes of a token, by name."""
    return ", ".join(token.scopes)


@admin.display(description="scopes")
def scope_meanings(token: ApiToken) -> str:
    """Return the scopes of a token, each with its meaning."""
    known = dict(ApiToken.Scope.choices)
    return "; ".join(f"{scope}: {known.get(scope, 'no longer a scope')}" for scope in token.scopes)


class Revoke(Operation):
    """Revoke the selected tokens."""

    label = "Revoke"
    permission = "pushserver.revoke_apitoken"
    is_destructive = True

    def touched(self, rows: Sequence[ApiToken]) -> Iterable[str]:
        alive = [row for row in rows if row.revoked_at is None]
        yield REVOKE_EFFECT.format(count=len(alive), total=len(rows))
        yield REVOKE_IS_FINAL

    def run(self, rows: Sequence[ApiToken], *, by: str) -> Done:  # noqa: ARG002 - the log entry names who
        count = tokens.revoke([row.pk for row in rows], now=timezone.now())
        return Done(f"Revoked tokens: {count}.") if count else Done(ALREADY_REVOKED, is_change=False)


class NewTokenForm(forms.ModelForm):  # type: ignore[type-arg]  # only generic for the type checker
    """Form for a new token."""

    scopes = forms.MultipleChoiceField(
        choices=[(scope.value, f"{scope.value}: {scope.label}") for scope in ApiToken.Scope],
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
    )

    class Meta:
        model = ApiToken
        fields: ClassVar = ["name", "scopes", "expires_at"]


@admin.register(ApiToken)
class ApiTokenAdmin(Operated, Narrowed, ModelAdmin):  # type: ignore[misc]  # unfold has no types
    """The list of API tokens, and the form for a new one."""

    operations: ClassVar[Any] = {"revoke": Revoke}
    change_form_template = "admin/facts/change_form.html"
    form = NewTokenForm
    list_display = (
        *("name", "prefix", scope_names, word("created_by", "by"), age("created_at", "made")),
        *(age("last_used_at", "last used"), age("expires_at", "expires"), age("revoked_at", "revoked")),
    )
    ordering: ClassVar[Any] = ("-pk",)
    actions = None
    shown: ClassVar[Any] = (
        *("name", "prefix", scope_meanings, word("created_by", "made by"), moment("created_at", "made")),
        *(moment("last_used_at", "last used"), moment("expires_at", "expires"), moment("revoked_at", "revoked")),
    )

    def has_change_permission(self, *_args: Any) -> bool:
        return False

    def has_delete_permission(self, *_args: Any) -> bool:
        return False

    def get_fields(self, request: HttpRequest, obj: ApiToken | None = None) -> Any:  # noqa: ARG002
        return self.shown if obj else NewTokenForm.Meta.fields

    def get_readonly_fields(self, request: HttpRequest, obj: ApiToken | None = None) -> Any:  # noqa: ARG002
        return self.shown if obj else ()

    def add_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Make a token. A form that is sent twice makes one token, and the second answer reports that."""
        try:
            return super().add_view(request, *args, **kwargs)
        except tokens.NameTakenError as error:
            messages.warning(request, str(error))
            return HttpResponseRedirect(reverse("admin:pushserver_apitoken_changelist"))

    def save_model(self, request: HttpRequest, obj: ApiToken, form: Any, change: bool) -> None:  # noqa: ARG002
        """Issue the token, and keep its text for the one page that shows it."""
        asked = form.cleaned_data
        row, text = tokens.issue(
            asked["name"],
            asked["scopes"],
            by=request.user.get_username(),
            now=timezone.now(),
            expires_at=asked["expires_at"],
        )
        obj.pk = row.pk
        obj.prefix = row.prefix
        obj.scopes = row.scopes
        obj.text = text

    def response_add(self, request: HttpRequest, obj: ApiToken, post_url_continue: str | None = None) -> HttpResponse:  # noqa: ARG002
        """Show the token in this answer, so that it is stored neither in a session nor in a cookie."""
        context = {**self.admin_site.each_context(request), "title": "The new API token", "token": obj}
        context["meanings"] = scope_meanings(obj).split("; ")
        response = TemplateResponse(request, "console/api_token.html", context)
        add_never_cache_headers(response)
        return response
