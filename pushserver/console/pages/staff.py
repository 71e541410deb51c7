"""Who may do what, and who did: accounts, roles, second factors, failed logins, API tokens, and both logs of staff."""

from collections.abc import Sequence
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import LogEntry
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.contrib.contenttypes.models import ContentType
from django.contrib.postgres.search import SearchQuery, SearchVector
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.cache import add_never_cache_headers
from django_otp.plugins.otp_totp.models import TOTPDevice
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget, UnfoldAdminRadioSelectWidget

from pushserver.console.models import AccessRecord, ApiToken, FailedLogin, NameTakenError
from pushserver.console.pages.labels import ROLES, SEARCH_CHANGES
from pushserver.console.toolkit.columns import NOTHING, age, link, shown_as, word, yes_no
from pushserver.console.toolkit.facts import FactAdmin, FactPage, Narrowed, ReadOnly
from pushserver.console.toolkit.operations import Done, Operated, Operation, done
from pushserver.console.toolkit.related import readable_by
from registrations.models import Registration

# The expression of the index over the log: `pushserver/migrations/0001_initial.py`.
WORDS = SearchVector("change_message", config="simple")
# Limit of registrations in one search. Only a few typed digits match more.
MAX_REGISTRATIONS = 100

for model in (User, Group, TOTPDevice):
    admin.site.unregister(model)


class NewAccountForm(UserCreationForm):  # type: ignore[misc]  # unfold has no types
    """Form for a new account: name, role and password."""

    usable_password = None  # Django offers accounts without a password, with which nobody could log in
    role = forms.ModelChoiceField(
        queryset=Group.objects.order_by("pk"),
        empty_label=None,
        widget=UnfoldAdminRadioSelectWidget,
        help_text=ROLES,
    )

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        for name in ("password1", "password2"):
            self.fields[name].required = True


ACCOUNT: list[Any] = [
    ("Account", {"fields": ("username", "password", "groups", "is_active")}),
    ("Person", {"fields": ("first_name", "last_name", "email")}),
    ("Access", {"fields": ("is_staff", "is_superuser", "last_login", "date_joined")}),
]


@admin.register(User)
class AccountAdmin(Narrowed, UserAdmin, ModelAdmin):  # type: ignore[misc, type-arg]  # unfold has no types
    """Accounts. Admins can neither make themselves superusers nor take over the account of one."""

    form = UserChangeForm
    add_form = NewAccountForm
    add_form_template = "admin/change_form.html"  # Django's own announces a second page
    add_fieldsets = ((None, {"fields": ("username", "role", "password1", "password2")}),)
    list_display = (
        "username",
        "role",
        yes_no("is_active", "active"),
        yes_no("is_superuser", "superuser"),
        age("last_login", "last login"),
    )
    actions = None
    change_password_form = AdminPasswordChangeForm
    linked_by = ("groups__id__exact",)

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).prefetch_related("groups")

    @admin.display(description="role")
    def role(self, account: User) -> str:
        return ", ".join(group.name for group in account.groups.all()) or NOTHING

    def get_fieldsets(self, request: HttpRequest, obj: User | None = None) -> Any:
        """Return the sections of the page. Only superusers see single permissions, because roles replace them."""
        if obj is None:
            return self.add_fieldsets
        single = [("Single permissions, beyond the role", {"fields": ("user_permissions",)})]
        return ACCOUNT + (single if request.user.is_superuser else [])

    def formfield_for_manytomany(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Offer the roles as checkboxes under the label "Role". There are few, and Django calls them groups."""
        if db_field.name != "groups":
            return super().formfield_for_manytomany(db_field, request, **kwargs)
        boxes = UnfoldAdminCheckboxSelectMultipleWidget()
        return db_field.formfield(queryset=Group.objects.order_by("pk"), widget=boxes, label="Role", help_text=ROLES)

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        """Let a new account into the console, where its role decides what it may do."""
        obj.is_staff = obj.is_staff or not change
        super().save_model(request, obj, form, change)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        if not change:
            form.instance.groups.set([form.cleaned_data["role"]])

    def response_add(self, request: HttpRequest, obj: User, post_url_continue: str | None = None) -> HttpResponse:
        """Redirect to the list. The form had all fields on one page, where Django shows a second page."""
        return super(UserAdmin, self).response_add(request, obj, post_url_continue)

    def get_readonly_fields(self, request: Any, obj: Any = None) -> Any:
        fields = super().get_readonly_fields(request, obj)
        return fields if request.user.is_superuser else (*fields, "is_superuser", "user_permissions")

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return bool(super().has_change_permission(request, obj)) and _may_touch(request.user, obj)

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return bool(super().has_delete_permission(request, obj)) and _may_touch(request.user, obj)


def _may_touch(person: Any, account: User | None) -> bool:
    return person.is_superuser or account is None or not account.is_superuser


@admin.register(Group)
class RoleAdmin(Narrowed, GroupAdmin, ModelAdmin):  # type: ignore[misc]  # unfold has no types
    """Roles: the three of `pushserver.roles`, and others that admins add."""


class RemovableOnly(FactPage, ModelAdmin):  # type: ignore[misc]  # unfold has no types
    """Rows that staff can view and remove, and neither add nor change."""

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return bool(super(ReadOnly, self).has_delete_permission(request, obj))


@admin.register(TOTPDevice)
class SecondFactorAdmin(RemovableOnly):
    """Second factors. Admins remove them for people who lost theirs; only a superuser removes that of a superuser.

    Only the owner sees the key, once.
    """

    list_display = ("user", yes_no("confirmed"), age("created_at", "since"), age("last_used_at", "last used"))
    shown: ClassVar[Any] = {"Second factor": list_display}

    def has_delete_permission(self, request: Any, obj: TOTPDevice | None = None) -> bool:
        return super().has_delete_permission(request, obj) and _may_touch(request.user, obj and obj.user)


@admin.register(FailedLogin)
class FailedLoginAdmin(RemovableOnly):
    """Failed logins. Removing one lets that person log in again at once."""

    list_display = ("username", "network", "count", age("last_at", "last"))
    shown: ClassVar[Any] = {"Failed logins": list_display}


@admin.register(AccessRecord)
class AccessRecordAdmin(FactAdmin):
    """The access log: which staff member opened the page of which row."""

    list_display = (word("username", "who"), "page", "object_id", age("at", "when"))
    ordering = ("-at",)
    shown: ClassVar[Any] = {"Opened page": list_display}


def subject_url(entry: LogEntry) -> str:
    """Return the URL of the row that an entry is about, or an empty text if the row has no page or was deleted."""
    url, kind = entry.get_admin_url(), entry.content_type
    if url is None or kind is None:
        return ""
    model: Any = kind.model_class()
    is_hash = model._meta.pk.get_internal_type() == "BinaryField"  # noqa: SLF001 - the documented way
    key = bytes.fromhex(str(entry.object_id)) if is_hash else entry.object_id
    return url if kind.get_all_objects_for_this_type(pk=key).exists() else ""


@admin.register(LogEntry)
class ChangeAdmin(FactAdmin):
    """The log of changes: which staff member changed which row. People see entries about rows that they may view."""

    list_display = (
        *(word("user", "who"), word("content_type__name", "what"), word("object_repr", "which")),
        *(word("get_change_message", "change"), age("action_time", "when")),
    )
    list_select_related = ("user", "content_type")
    # The primary key grows with time, and has an index.
    ordering = ("-pk",)
    shown: ClassVar[Any] = {
        "Change": (
            *(*list_display[:2], link(subject_url, "which", "the row itself"), word("object_repr", "its name")),
            *(word("object_id", "its id"), *list_display[3:]),
        )
    }
    linked_by = ("content_type__id__exact", "object_id__exact")
    search_help_text = SEARCH_CHANGES
    takes_words = True

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the entries that this person may read."""
        rows = super().get_queryset(request)
        # People without the permission are refused elsewhere.
        return rows.filter(readable_by(request.user)) if self.has_view_permission(request) else rows

    def matching(self, term: str) -> Q:
        """Return the condition for entries with this word, by this staff member, or about this user."""
        owned = self._about(term)
        if owned:
            return owned
        writers = User.objects.filter(username__iexact=term).values_list("pk", flat=True)
        has_word = Q(pk__in=LogEntry.objects.alias(words=WORDS).filter(words=SearchQuery(term, config="simple")))
        return has_word | Q(user__in=list(writers))

    def _about(self, term: str) -> Q:
        """Return the condition for entries about the registrations with this hash or id. Without any, it is empty."""
        registrations: Any = admin.site.get_model_admin(Registration)
        condition: Q = registrations.matching(term)
        if not condition:
            return Q()
        ids = Registration.objects.filter(condition).values_list("pk", flat=True)[:MAX_REGISTRATIONS]
        kind = ContentType.objects.get_for_model(Registration)
        return Q(content_type=kind, object_id__in=[str(pk) for pk in ids]) | Q(object_id=term)


# API tokens -----------------------------------------------------------------------------------------------------------


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
    label = "Revoke"
    permission = "pushserver.revoke_apitoken"
    is_destructive = True
    effects = (
        "Tokens that are not revoked yet: {fitting}. The API will refuse programs that use them.",
        "This cannot be undone; make a new token instead.",
    )

    @classmethod
    def fits(cls, row: ApiToken) -> bool:
        return row.revoked_at is None

    def run(self, rows: Sequence[ApiToken], *, by: str) -> Done:  # noqa: ARG002 - the log entry names who
        count = ApiToken.revoke([row.pk for row in rows], now=timezone.now())
        return done(count, f"Revoked tokens: {count}.", "Already revoked: nothing was changed.")


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
class ApiTokenAdmin(Operated, FactPage, ModelAdmin):  # type: ignore[misc]  # unfold has no types
    """The list of API tokens, and the form for a new one."""

    operations: ClassVar[Any] = {"revoke": Revoke}
    form = NewTokenForm
    list_display = (
        *("name", "prefix", shown_as(scope_names, scope_meanings), word("created_by", "made by")),
        *(age("created_at", "made"), age("last_used_at", "last used"), age("expires_at", "expires")),
        age("revoked_at", "revoked"),
    )
    ordering: ClassVar[Any] = ("-pk",)
    actions = None
    shown: ClassVar[Any] = {"API token": list_display}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return bool(super(ReadOnly, self).has_add_permission(request))

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return super().get_fieldsets(request, obj) if obj else [(None, {"fields": NewTokenForm.Meta.fields})]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return super().get_readonly_fields(request, obj) if obj else ()

    def add_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Make a token. A form that is sent twice makes one token, and the second answer reports that."""
        try:
            return super().add_view(request, *args, **kwargs)
        except NameTakenError as error:
            messages.warning(request, str(error))
            return HttpResponseRedirect(reverse("admin:pushserver_apitoken_changelist"))

    def save_model(self, request: HttpRequest, obj: ApiToken, form: Any, change: bool) -> None:  # noqa: ARG002
        """Issue the token. Its text stays with it for the one page that shows it."""
        obj.issue(by=request.user.get_username(), now=timezone.now())

    def response_add(self, request: HttpRequest, obj: ApiToken, post_url_continue: str | None = None) -> HttpResponse:  # noqa: ARG002
        """Show the token in this answer, so that it is stored neither in a session nor in a cookie."""
        context = {**self.admin_site.each_context(request), "title": "The new API token", "token": obj}
        context["meanings"] = scope_meanings(obj).split("; ")
        response = TemplateResponse(request, "console/api_token.html", context)
        add_never_cache_headers(response)
        return response
