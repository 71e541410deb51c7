"""API tokens in the console: made by whoever may add one, shown once, and revoked."""

from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from unfold.admin import ModelAdmin
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget

from pushserver.api import tokens
from pushserver.models import ApiToken
from registrations.console.columns import age, moment, word

REVOKED = "Revoked"


class NewTokenForm(forms.ModelForm):  # type: ignore[type-arg]  # only generic for the type checker
    scopes = forms.MultipleChoiceField(
        choices=[(scope, scope) for scope in ApiToken.Scope.values], widget=UnfoldAdminCheckboxSelectMultipleWidget
    )

    class Meta:
        model = ApiToken
        fields: ClassVar = ["name", "scopes", "expires_at"]


@admin.register(ApiToken)
class ApiTokenAdmin(ModelAdmin):  # type: ignore[misc]  # unfold has no types
    change_form_template = "admin/pushserver/apitoken/change_form.html"
    form = NewTokenForm
    list_display = (
        *("name", "prefix", "scopes", word("created_by", "by"), age("created_at", "made")),
        *(age("last_used_at", "last used"), age("expires_at", "expires"), age("revoked_at", "revoked")),
    )
    ordering: ClassVar[Any] = ("-pk",)
    actions = None
    shown: ClassVar[Any] = (
        *("name", "prefix", "scopes", word("created_by", "made by"), moment("created_at", "made")),
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

    def save_model(self, request: HttpRequest, obj: ApiToken, form: Any, change: bool) -> None:  # noqa: ARG002
        asked = form.cleaned_data
        row, text = tokens.issue(
            asked["name"],
            asked["scopes"],
            by=request.user.get_username(),
            now=timezone.now(),
            expires_at=asked["expires_at"],
        )
        obj.pk = row.pk
        messages.warning(request, f"The token, shown this once: {text}")

    def get_urls(self) -> list[URLPattern]:
        revoke = self.admin_site.admin_view(self.revoke)
        return [path("<int:token_id>/revoke/", revoke, name="pushserver_apitoken_revoke"), *super().get_urls()]

    def revoke(self, request: HttpRequest, token_id: int) -> HttpResponse:
        if not request.user.has_perm("pushserver.revoke_apitoken"):
            raise PermissionDenied
        token = get_object_or_404(ApiToken, pk=token_id)
        page = reverse("admin:pushserver_apitoken_change", args=[token_id])
        if request.method != "POST":
            context = {**self.admin_site.each_context(request), "opts": self.opts, "token": token, "page": page}
            return TemplateResponse(
                request, "admin/pushserver/apitoken/revoke.html", context | {"title": f"Revoke {token}"}
            )
        if tokens.revoke(token_id, now=timezone.now()):
            self.log_change(request, token, REVOKED)
        messages.success(request, f"{REVOKED}: {token}")
        return redirect(page)
