"""Fields of each kind of row in the API, and the filters of its lists, each of which has an index.

No field is a token, key or payload, or a digest of one.
"""

from typing import Any, ClassVar
from uuid import UUID

import django_filters
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB
from django.core.validators import RegexValidator
from django.db.models import QuerySet
from django.utils.crypto import salted_hmac
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from notifications.models import Attempt, Channel, Notification, NotificationRequest
from pushserver.console.health.verdicts import State
from pushserver.console.models import CanaryRun, WakuCause, WakuLink, XmppCause, XmppLink
from pushserver.console.toolkit.search import KEY_HASH_DIGITS, SHORT_ID_DIGITS, spellings
from registrations.models import Registration, Route


@extend_schema_field({"type": "string", "pattern": "^[0-9a-f]*$"})
class HexField(serializers.Field[Any, Any, str, Any]):
    """Bytes as lower-case hex digits."""

    def to_representation(self, value: Any) -> str:
        return bytes(value).hex()


class PublicIdField(serializers.UUIDField):
    """The id of a row that has a page of its own, so that nobody reads other rows by counting.

    It is the row's number and eight zero bytes, encrypted as one block under a key made of `SECRET_KEY`. So it needs no
    column and no index in a large table, and nobody without the key makes another valid one.
    """

    def to_representation(self, value: Any) -> str:
        return str(UUID(bytes=_cipher().encryptor().update(value.to_bytes(8) + bytes(8))))


def number_of(public_id: str) -> int | None:
    """Return the number of the row with this public id, or None for a text that this server never made."""
    try:
        block = _cipher().decryptor().update(UUID(public_id).bytes)
    except ValueError:
        return None
    return None if any(block[8:]) else int.from_bytes(block[:8])


def _cipher() -> Cipher[ECB]:
    return Cipher(AES256(salted_hmac("ids in the API", "", algorithm="sha256").digest()), ECB())  # noqa: S305 - one block


class RouteAnswer(serializers.ModelSerializer[Route]):
    platform = serializers.CharField(source="get_token_type_display")

    class Meta:
        model = Route
        fields: ClassVar = [
            *("id", "platform", "app_topic", "state", "disabled_reason", "disabled_at"),
            *("failing_since", "last_success_at"),
        ]


class RegistrationAnswer(serializers.ModelSerializer[Registration]):
    key_hash = HexField(source="public_key_hash", help_text="SHAKE-256 of the compressed public key, 64 bytes.")
    version = serializers.IntegerField(help_text="Unsigned, 64 bits.")
    route = RouteAnswer(allow_null=True)

    class Meta:
        model = Registration
        fields: ClassVar = [
            *("id", "key_hash", "installation_id", "version", "state", "enabled", "allow_from_contacts_only"),
            *("block_mentions", "route", "created_at", "updated_at"),
        ]


class AttemptAnswer(serializers.ModelSerializer[Attempt]):
    class Meta:
        model = Attempt
        fields: ClassVar = [
            *("number", "gateway", "outcome", "code", "late_code", "latency_ms", "started_at", "began_at", "ended_at"),
            "waited_ms",
        ]


class NotificationAnswer(serializers.ModelSerializer[Notification]):
    """One push to one installation, or why there is none."""

    id = PublicIdField(source="pk", read_only=True)
    key_hash = HexField(source="public_key_hash")
    message_id = HexField(source="request.message_id", help_text="Of the Status message.")
    type = serializers.IntegerField(help_text="As sent: an open enum of 32 bits.")
    next_attempt_at = serializers.DateTimeField(allow_null=True)

    class Meta:
        model = Notification
        fields: ClassVar = [
            *("id", "message_id", "key_hash", "installation_id", "type", "state", "report"),
            *("attempt_count", "created_at", "next_attempt_at", "expires_at", "finished_at"),
        ]


class RequestAnswer(serializers.ModelSerializer[NotificationRequest]):
    amm_message_id = HexField(source="request_key", help_text="Of the metadata message that carried the request.")

    class Meta:
        model = NotificationRequest
        fields: ClassVar = ["id", "amm_message_id", "state", "received_at", "reply_due_at", "answered_at"]


class StoryAnswer(NotificationAnswer):
    """A notification with its request and every attempt: its whole way, with times."""

    request = RequestAnswer()
    attempts = serializers.SerializerMethodField()

    class Meta(NotificationAnswer.Meta):
        fields: ClassVar = [*NotificationAnswer.Meta.fields, "request", "attempts"]

    @extend_schema_field(AttemptAnswer(many=True))
    def get_attempts(self, notification: Notification) -> Any:
        return AttemptAnswer(notification.attempts.order_by("number"), many=True).data


class ChannelAnswer(serializers.ModelSerializer[Channel]):
    platform = serializers.CharField(source="get_token_type_display")
    state = serializers.ChoiceField(choices=["running", "paused", "tripped"], help_text="One that is both is paused.")
    reason = serializers.CharField(allow_null=True, help_text="Why it is paused or tripped.")
    changed_by = serializers.CharField(allow_null=True, help_text="An operator's name; empty for the server itself.")
    since = serializers.DateTimeField(allow_null=True, help_text="Since when it is paused or tripped.")
    next_probe_at = serializers.DateTimeField(allow_null=True)

    class Meta:
        model = Channel
        fields: ClassVar = [
            *("id", "platform", "app_topic", "state", "reason", "changed_by", "since", "next_probe_at"),
            *("last_success_at", "deaths_distrusted_since"),
        ]


class LinkAnswer(serializers.Serializer[Any]):
    """One link. Each network adds the field ``link``, with its own choices."""

    result = serializers.ChoiceField(choices=["held", "broken", "not reached"])
    ms = serializers.IntegerField(allow_null=True, help_text="Duration of the link; null when it did not answer.")


class CanaryLinkAnswer(LinkAnswer):
    link = serializers.ChoiceField(choices=WakuLink.choices)


class XmppLinkAnswer(LinkAnswer):
    link = serializers.ChoiceField(choices=XmppLink.choices)


class CanaryRunAnswer(serializers.ModelSerializer[CanaryRun]):
    """One round trip of the canary, with every link in the order of the chain."""

    broken_link = serializers.ChoiceField(choices=WakuLink.choices, allow_blank=True, required=False)
    cause = serializers.ChoiceField(choices=WakuCause.choices, allow_blank=True, required=False)
    links = serializers.SerializerMethodField()

    class Meta:
        model = CanaryRun
        fields: ClassVar = [
            *("id", "state", "started_at", "finished_at", "is_dry_run", "broken_link", "cause", "detail", "links"),
        ]

    @extend_schema_field(CanaryLinkAnswer(many=True))
    def get_links(self, run: CanaryRun) -> list[dict[str, Any]]:
        return [{"link": link, "result": _result(run, link, ms), "ms": ms} for link, ms in run.timings().items()]


class XmppCanaryRunAnswer(CanaryRunAnswer):
    """One round trip of the canary of XMPP, with every link in the order of the chain."""

    broken_link = serializers.ChoiceField(choices=XmppLink.choices, allow_blank=True, required=False)
    cause = serializers.ChoiceField(choices=XmppCause.choices, allow_blank=True, required=False)

    class Meta(CanaryRunAnswer.Meta):
        fields: ClassVar = [name for name in CanaryRunAnswer.Meta.fields if name != "is_dry_run"]

    @extend_schema_field(XmppLinkAnswer(many=True))
    def get_links(self, run: CanaryRun) -> list[dict[str, Any]]:
        return super().get_links(run)


def _result(run: CanaryRun, link: str, ms: int | None) -> str:
    """Return the result of one link. A broken link can have a time: until the server answered with a failure."""
    if link == run.broken_link:
        return "broken"
    return "not reached" if ms is None else "held"


class IndicatorAnswer(serializers.Serializer[Any]):
    """The state of one part of the server. The dashboard shows the same."""

    id = serializers.CharField()
    state = serializers.ChoiceField(choices=[(state.value, state.name.lower()) for state in State])
    since = serializers.DateTimeField(allow_null=True, help_text="The time since when it is bad, where that is known.")
    sentence = serializers.CharField(help_text="The state in words.")
    first_step = serializers.CharField(allow_blank=True, help_text="The first step; empty while it is fine.")
    cause = serializers.CharField(
        allow_blank=True, help_text="The id of the indicator that explains why this one is bad, where one does."
    )
    runbook = serializers.CharField(help_text="The page in docs/runbooks that says what to do step by step.")
    decides_readiness = serializers.BooleanField()


class StatusAnswer(serializers.Serializer[Any]):
    """All health indicators, causes before effects. /readyz shows those that decide readiness."""

    status = serializers.ChoiceField(choices=["ready", "not ready"])
    indicators = IndicatorAnswer(many=True)


# Filters --------------------------------------------------------------------------------------------------------------


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
