"""Filters of the lists. Each filter has an index."""

from typing import Any, ClassVar

import django_filters
from django.core.validators import RegexValidator
from django.db.models import QuerySet

from notifications.models import Notification
from pushserver.console.toolkit.search import KEY_HASH_DIGITS, SHORT_ID_DIGITS, spellings
from registrations.models import Registration


def hex_filter(field_name: str, digits: int, label: str) -> django_filters.CharFilter:
    """Return a filter for a field of bytes by all of its hex digits."""
    return django_filters.CharFilter(
        field_name=field_name,
        method="by_bytes",
        label=label,
        validators=[RegexValidator(rf"\A[0-9a-fA-F]{{{digits}}}\Z", f"{digits} hex digits.")],
    )


class BytesFilters(django_filters.FilterSet):  # type: ignore[misc]  # has no types
    def by_bytes(self, rows: QuerySet[Any], name: str, value: str) -> QuerySet[Any]:
        return rows.filter(**{name: bytes.fromhex(value)})


class RegistrationFilters(BytesFilters):
    key_hash = hex_filter("public_key_hash", KEY_HASH_DIGITS, "SHAKE-256 of the public key, 128 hex digits.")
    installation_id = django_filters.UUIDFilter(method="by_installation", label="In any case, with or without dashes.")

    class Meta:
        model = Registration
        fields: ClassVar[list[str]] = []

    def by_installation(self, rows: QuerySet[Any], name: str, value: Any) -> QuerySet[Any]:
        return rows.filter(**{f"{name}__in": spellings(str(value))})


class NotificationFilters(BytesFilters):
    message_id = hex_filter("request__message_id", SHORT_ID_DIGITS, "Of the Status message, 64 hex digits.")
    amm_message_id = hex_filter("request__request_key", SHORT_ID_DIGITS, "Of the metadata message.")
    key_hash = hex_filter("public_key_hash", KEY_HASH_DIGITS, "Of the recipient, 128 hex digits.")

    class Meta:
        model = Notification
        fields: ClassVar[list[str]] = []


class ReportFilters(django_filters.FilterSet):  # type: ignore[misc]  # has no types
    day = django_filters.DateFilter()
    from_day = django_filters.DateFilter(field_name="day", lookup_expr="gte")
    to_day = django_filters.DateFilter(field_name="day", lookup_expr="lte")
