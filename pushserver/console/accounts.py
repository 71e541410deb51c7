"""The lists of staff: accounts, roles, second factors, failed logins, and who opened and changed what."""

from typing import Any, ClassVar

from axes.models import AccessAttempt
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django_otp.plugins.otp_totp.models import TOTPDevice
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from kit.admin.columns import age, moment, word, yes_no
from kit.admin.facts import FactAdmin, FactPage, Narrowed, ReadOnly
from pushserver.models import OpenedRecord

for model in (User, Group, TOTPDevice):
    admin.site.unregister(model)


@admin.register(User)
class AccountAdmin(Narrowed, UserAdmin, ModelAdmin):  # type: ignore[misc, type-arg]  # unfold has no types
    """Accounts. A person who manages them can neither become a superuser nor take over the account of one."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    linked_by = ("groups__id__exact",)

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
    """The three roles of `pushserver.roles`, and any others."""


class RemovableOnly(FactPage, ModelAdmin):  # type: ignore[misc]  # unfold has no types
    """Rows that can be viewed and removed, and neither added nor changed."""

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return bool(super(ReadOnly, self).has_delete_permission(request, obj))


@admin.register(TOTPDevice)
class SecondFactorAdmin(RemovableOnly):
    """Second factors, removed for people who lost theirs; a superuser's is removed by another superuser.

    The key is shown to its owner only, once.
    """

    list_display = ("user", yes_no("confirmed"), age("created_at", "since"), age("last_used_at", "last used"))
    shown: ClassVar[Any] = {
        "Second factor": (
            "user",
            yes_no("confirmed"),
            moment("created_at", "since"),
            moment("last_used_at", "last used"),
        )
    }

    def has_delete_permission(self, request: Any, obj: TOTPDevice | None = None) -> bool:
        return super().has_delete_permission(request, obj) and _may_touch(request.user, obj and obj.user)


@admin.register(AccessAttempt)
class FailedLoginAdmin(RemovableOnly):
    """Failed logins. Removing one lets that person log in again at once."""

    list_display = ("username", "ip_address", "failures_since_start", age("attempt_time", "last"))
    shown: ClassVar[Any] = {
        "Failed logins": ("username", "ip_address", "failures_since_start", moment("attempt_time", "last"))
    }


@admin.register(OpenedRecord)
class OpenedRecordAdmin(FactAdmin):
    """Which staff member opened the page of which row."""

    list_display = (word("username", "who"), "page", "object_id", age("at", "when"))
    ordering = ("-at",)
    shown: ClassVar[Any] = {"Who looked at what": (word("username", "who"), "page", "object_id", moment("at", "when"))}


@admin.register(LogEntry)
class ChangeAdmin(FactAdmin):
    """Which staff member changed what."""

    list_display = (
        word("user", "who"),
        word("content_type", "what"),
        word("object_repr", "which"),
        word("get_change_message", "change"),
        age("action_time", "when"),
    )
    list_select_related = ("user", "content_type")
    # The key grows with time and has an index.
    ordering = ("-pk",)
    shown: ClassVar[Any] = {
        "Who changed what": (
            word("user", "who"),
            word("content_type", "what"),
            word("object_repr", "which"),
            word("object_id", "its id"),
            word("get_change_message", "change"),
            moment("action_time", "when"),
        )
    }
