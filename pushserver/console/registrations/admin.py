"""Read-only admin pages of registrations, their addresses, grants and history."""

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import F, Q
from django.http import HttpRequest
from django.urls import reverse

from kit.db.clock import HOUR
from pushserver.console.toolkit.columns import (
    SHORT_DIGITS,
    age,
    as_digits,
    coarse_age,
    count,
    full_hash,
    link,
    moment,
    short_hash,
    state,
    word,
    yes_no,
)
from pushserver.console.toolkit.facts import FactAdmin, FactInline
from pushserver.console.toolkit.lists import RecentValuesFilter, WordFilter
from pushserver.console.toolkit.operations import Operated
from pushserver.console.toolkit.search import hash_digits, spellings
from registrations.messages import name_of
from registrations.models import Grant, Registration, RegistrationEvent, Route, TopicKey

KEY_HASH_BYTES = 64
GRANT_SECRETS = ("signature", "access_token_digest")
ROUTE_SECRETS = ("address_encrypted", "address_digest", "delivered_digest")
LISTS = {
    "allowed_key_list": "allowed contacts",
    "blocked_chat_list": "blocked chats",
    "muted_chat_list": "muted chats",
    "allowed_mentions_chat_list": "chats with mentions",
}


def registration_url(registration_id: int | None) -> str:
    return reverse("admin:registrations_registration_change", args=[registration_id]) if registration_id else ""


def route_url(route_id: int | None) -> str:
    return reverse("admin:registrations_route_change", args=[route_id]) if route_id else ""


class GrantInline(FactInline):
    model = Grant
    fields = readonly_fields = (full_hash("server_public_key", "server"), moment("granted_at"))
    unread = GRANT_SECRETS


@admin.register(Registration)
class RegistrationAdmin(Operated, FactAdmin):
    """The page of registrations. The console of notifications adds its operations, which concern notifications, too."""

    list_display = (
        short_hash("public_key_hash", "key hash"),
        "installation_id",
        "version",
        state("state"),
        word("route__get_token_type_display", "token type"),
        state("route__state", "route"),
        word("route__disabled_reason", "reason"),
        yes_no("enabled", "notified"),
        age("updated_at", "last change"),
    )
    list_filter = (("state", WordFilter),)
    list_select_related = ("route",)
    shown: ClassVar[Any] = {
        "Registration": (
            full_hash("public_key_hash", "key hash"),
            "installation_id",
            "version",
            state("state"),
            link(lambda registration: route_url(registration.route_id), "route", "its route"),
            moment("created_at", "first registered"),
            moment("updated_at", "last change"),
        ),
        "User preferences": (
            yes_no("enabled", "notified"),
            yes_no("allow_from_contacts_only"),
            yes_no("block_mentions"),
            *(count(f"{name}_length", label) for name, label in LISTS.items()),
        ),
    }
    inlines = (GrantInline,)
    search_help_text = "Chat key, key hash (or its first 8 digits) or installation id"
    search_hashes = (("public_key_hash", KEY_HASH_BYTES),)
    unread = (
        "access_token_encrypted",
        "access_token_digest",
        "content_digest",
        *LISTS,
        *(f"route__{name}" for name in ROUTE_SECRETS),
    )

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).annotate(**{f"{name}_length": F(f"{name}__len") for name in LISTS})

    def matching_id(self, term: str) -> Q:
        return Q(installation_id__in=spellings(term))


@admin.register(Route)
class RouteAdmin(FactAdmin):
    list_display = (
        word("pk", "route"),
        "token_type",
        word("app_topic", "app"),
        state("state"),
        word("disabled_reason", "reason"),
        age("disabled_at", "disabled"),
        age("failing_since", "failing since"),
        coarse_age("last_success_at", "last success", HOUR),
    )
    list_filter = (("state", WordFilter), ("disabled_reason", RecentValuesFilter))
    shown: ClassVar[Any] = {
        "Address": (
            word("gateway"),
            "token_type",
            word("app_topic", "app"),
            link(lambda route: registration_url(registration_of(route)), "registration", "its registration"),
            "generation",
            moment("created_at", "since"),
        ),
        "Delivery": (
            state("state"),
            word("disabled_reason"),
            moment("disabled_at", "disabled"),
            moment("failing_since"),
            coarse_age("last_success_at", "last success", HOUR),
            yes_no("is_proven", "to this very address"),
        ),
    }
    unread = ROUTE_SECRETS


def registration_of(route: Route) -> int | None:
    return Registration.objects.filter(route=route).values_list("pk", flat=True).first()


@admin.register(Grant)
class GrantAdmin(FactAdmin):
    list_display = (
        "__str__",
        short_hash("registration__public_key_hash", "key hash"),
        short_hash("server_public_key", "server"),
        age("granted_at", "granted"),
    )
    list_select_related = ("registration",)
    shown: ClassVar[Any] = {
        "Grant": (
            link(lambda grant: registration_url(grant.registration_id), "registration", "its registration"),
            full_hash("server_public_key", "server"),
            moment("granted_at", "granted"),
        )
    }
    search_help_text = "Chat key, key hash (or its first 8 digits) or installation id of the registration"
    search_hashes = (("registration__public_key_hash", KEY_HASH_BYTES),)

    def get_queryset(self, request: HttpRequest) -> Any:
        shown = ("registration__public_key_hash", "server_public_key", "granted_at")
        return super().get_queryset(request).only(*shown)

    def matching_id(self, term: str) -> Q:
        return Q(registration__installation_id__in=spellings(term))


@admin.register(RegistrationEvent)
class RegistrationEventAdmin(FactAdmin):
    list_display = (state("kind", "what"), "token", word("app_topic", "app"), "pseudonym", age("at", "when"))
    list_filter = (("kind", WordFilter),)
    ordering = ("-at",)
    shown: ClassVar[Any] = {
        "Event": (
            *(state("kind"), "token", word("app_topic", "app"), word("bridge", "bridge")),
            *("pseudonym", moment("at", "time")),
        )
    }
    search_help_text = "Pseudonym of an installation or device, as its page links to"

    @admin.display(description="token type")
    def token(self, event: RegistrationEvent) -> str:
        return name_of(event.token_type)

    def matching_id(self, term: str) -> Q:
        return Q(pseudonym=term)


@admin.register(TopicKey)
class TopicKeyAdmin(FactAdmin):
    list_display = ("__str__", "short_name", yes_no("has_key", "key derived"), age("created_at", "since"))
    shown: ClassVar[Any] = {
        "Query topic": (
            "whole_name",
            "__str__",
            yes_no("has_key", "key derived"),
            moment("created_at", "since"),
        )
    }
    search_help_text = "Chat key or key hash (or its first 8 digits)"
    unread = ("key_encrypted",)

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).annotate(has_key=Q(key_encrypted__isnull=False))

    def matching(self, term: str) -> Q:
        digits = hash_digits(term)
        return Q(name__gte=digits, name__lt=f"{digits}g") if digits else Q()  # "g" is above all digits

    @admin.display(description="key hash")
    def short_name(self, topic_key: TopicKey) -> str:
        return as_digits(topic_key.name[:SHORT_DIGITS])

    @admin.display(description="key hash")
    def whole_name(self, topic_key: TopicKey) -> str:
        return as_digits(topic_key.name)
