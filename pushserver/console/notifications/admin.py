"""Lists of requests, notifications and attempts in the console: which of them are stuck, since when, and for whom."""

from collections import Counter, defaultdict
from datetime import timedelta
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join

from kit.db.partitions import UNDER_WAY
from notifications import reports
from notifications.messages import FAILURES, NotificationType
from notifications.models import WAITING, Attempt, Notification, NotificationRequest
from notifications.queues import queues
from pushserver.console.notifications import channels  # noqa: F401 - registers its page
from pushserver.console.notifications.operations import (
    DisableRegistration,
    DropNotifications,
    EnableRegistration,
    TryNow,
)
from pushserver.console.registrations.admin import KEY_HASH_BYTES, RegistrationAdmin, route_url
from pushserver.console.toolkit.columns import (
    NOTHING,
    SHORT_DIGITS,
    age,
    as_digits,
    full_hash,
    hex_of,
    link,
    milliseconds,
    moment,
    number,
    short_hash,
    short_id,
    state,
    word,
    yes_no,
)
from pushserver.console.toolkit.facts import FactAdmin, FactInline
from pushserver.console.toolkit.labels import label
from pushserver.console.toolkit.lists import RecentValuesFilter, WordFilter, choices, during, only
from pushserver.console.toolkit.operations import Operated
from pushserver.console.toolkit.search import spellings
from registrations.messages import name_of
from registrations.models import Registration

ID_BYTES = 32
PUSH_CONTENT = ("dedup_key", "collapse_id", "chat_id", "message", "wake")
# Delivery claims a due notification within seconds. One that waits longer than this is stuck.
STUCK_AFTER = timedelta(minutes=1)
# A search for an installation id finds the notifications of this number of its newest owners. It has one, as a rule.
MAX_OWNERS = 1000
# The outcome of a request is read from this number of its notifications.
MAX_STATES = 100
State = Notification.State
# Of notifications, and of requests.
OPEN_STATES = {*WAITING, State.IN_FLIGHT, NotificationRequest.State.WAITING}
RegistrationAdmin.operations = {"disable": DisableRegistration, "enable": EnableRegistration}


def request_url(request_id: int) -> str:
    return reverse("admin:notifications_notificationrequest_change", args=[request_id])


def notification_url(notification_id: int) -> str:
    return reverse("admin:notifications_notification_change", args=[notification_id])


def timeline_url(notification_id: int) -> str:
    """Return the address of a notification's timeline. The timelines are pages of the console, not of this app."""
    return reverse("timeline", args=[notification_id])


def request_timeline_url(request_id: int) -> str:
    """Return the address of the timeline of a request."""
    return reverse("request_timeline", args=[request_id])


def stuck() -> Q:
    """Return the condition of notifications that wait for too long. One behind a halt is not stuck."""
    # By queue, because the index begins with it.
    open_ids = sorted(queues.load().open_ids)
    return Q(queue_id__in=open_ids, due_at__lt=timezone.now() - STUCK_AFTER, ended_on=UNDER_WAY)


PROGRESS = choices("progress", {"open": ("open", Q(ended_on=UNDER_WAY)), "stuck": ("stuck: due for a minute", stuck)})


class StateFilter(WordFilter):
    """A filter over the states. It keeps PostgreSQL from searching the days of history for rows of open states."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        rows = super().queryset(request, queryset)
        asked: Any = self.used_parameters.get(self.lookup_kwarg) or [""]
        return rows.filter(ended_on=UNDER_WAY) if OPEN_STATES.issuperset(asked) else rows


class NotificationInline(FactInline):
    model = Notification
    fields = readonly_fields = (
        link(lambda n: timeline_url(n.pk), "timeline"),
        link(lambda n: notification_url(n.pk), "notification", "notification"),
        short_hash("public_key_hash", "key hash"),
        "installation_id",
        state("state"),
        state("report", "report to the sender"),
        number("attempt_count", "attempts"),
        moment("finished_at", "finished"),
    )
    ordering = ("position",)
    unread = PUSH_CONTENT


@admin.register(NotificationRequest)
class NotificationRequestAdmin(FactAdmin):
    list_display = (
        short_hash("request_key", "request"),
        link(lambda request: request_timeline_url(request.pk), "timeline"),
        word("bridge", "bridge"),
        short_hash("message_id", "Status message"),
        "recipient",
        "outcome",
        state("state"),
        age("received_at"),
        age("reply_due_at", "reply due"),
        age("answered_at", "answered"),
    )
    list_filter = (("state", StateFilter),)
    shown: ClassVar[Any] = {
        "Request": (
            state("state"),
            word("bridge", "bridge"),
            moment("received_at", "received"),
            moment("reply_due_at", "reply due"),
            moment("answered_at", "answered"),
        ),
        "Decided at once": ("decided_at_once",),
        "Ids": (
            full_hash("request_key", "metadata message id"),
            full_hash("message_id", "Status message id"),
            full_hash("source_key", "envelope"),
            full_hash("sender_digest", "digest of its sender"),
        ),
    }
    inlines = (NotificationInline,)
    search_help_text = "Id of the metadata message or of the Status message (or its first 8 digits)"
    search_hashes = (("request_key", ID_BYTES), ("message_id", ID_BYTES))
    unread = ("reply_address", "names")

    @admin.display(description="recipient")
    def recipient(self, request: Any) -> str:
        """Return the recipient of the first notification, with a link to the page of the user."""
        if not request.recipient_hash:
            return NOTHING
        digits = hex_of(request.recipient_hash)
        return format_html('<a href="{}">{}</a>', reverse("user", args=[digits]), as_digits(digits[:SHORT_DIGITS]))

    @admin.display(description="outcome")
    def outcome(self, request: Any) -> str:
        """Return the states of the notifications, and the verdicts on what has no row, each with its number."""
        found = Counter([*request.states, *(one.verdict.value for one in reports.unpack(request.decided))])
        words = ((label(word), f" {number}" if number > 1 else "") for word, number in found.items())
        return format_html_join(" ", "{}{}", words) or NOTHING

    @admin.display(description="verdicts, by position in the request")
    def decided_at_once(self, request: NotificationRequest) -> str:
        """Return the verdicts of notifications without a row, each with its positions, counted from 0."""
        places: defaultdict[str, list[int]] = defaultdict(list)
        for decided in reports.unpack(request.decided):
            places[decided.verdict].append(decided.position)
        return "; ".join(f"{verdict}: {', '.join(map(str, own))}" for verdict, own in places.items()) or NOTHING

    def get_queryset(self, request: HttpRequest) -> Any:
        """Return the requests with the recipient of the first notification, and the states of all.

        They are read for each row shown: a join would read the whole table first.
        """
        own = Notification.objects.filter(request=OuterRef("pk")).order_by("position")
        recipient = Subquery(own.values("public_key_hash")[:1])
        states = ArraySubquery(own.values("state")[:MAX_STATES])
        rows: Any = super().get_queryset(request)
        return rows.annotate(recipient_hash=recipient, states=states)

    def get_list_display(self, request: HttpRequest) -> Any:
        """Return the columns, without what notifications say for people who may not view these."""
        may_view = request.user.has_perm("notifications.view_notification")
        return [name for name in self.list_display if may_view or name not in {"recipient", "outcome"}]


class AttemptInline(FactInline):
    model = Attempt
    fields = readonly_fields = (
        number("number", "attempt"),
        "gateway",
        state("outcome"),
        word("code"),
        word("late_code", "reported later"),
        milliseconds("latency_ms", "latency"),
        moment("began_at", "began"),
        moment("ended_at", "ended"),
    )
    ordering = ("number",)


@admin.register(Notification)
class NotificationAdmin(Operated, FactAdmin):
    operations: ClassVar[Any] = {"now": TryNow, "drop": DropNotifications}
    list_display = (
        word("pk", "notification"),
        link(lambda n: timeline_url(n.pk), "timeline"),
        short_hash("public_key_hash", "key hash"),
        short_id("installation_id", "installation"),
        "type_name",
        state("state"),
        state("report", "report"),
        number("attempt_count", "attempts"),
        age("created_at"),
        age("next_attempt_at", "due"),
    )
    list_filter = (PROGRESS, ("state", StateFilter), during("finished_at", days="ended_on"))
    shown: ClassVar[Any] = {
        "Notification": (
            state("state"),
            state("report", "report to the sender"),
            "type_name",
            word("grade", "grade"),
            number("attempt_count", "attempts"),
            number("ambiguous_count", "of these ambiguous"),
        ),
        "Recipient": (
            full_hash("public_key_hash", "key hash"),
            "installation_id",
            link(lambda n: route_url(n.route_id), "route", "its route"),
            number("route_generation", "generation of the route"),
            link(lambda n: request_url(n.request_id), "request", "its request"),
            number("position", "position in the request"),
        ),
        "Times": (
            moment("created_at", "created"),
            moment("next_attempt_at", "next attempt"),
            moment("lease_until", "being sent until"),
            moment("finished_at", "finished"),
            moment("expires_at", "expires"),
        ),
    }
    inlines = (AttemptInline,)
    linked_by = ("request__id__exact", "route__id__exact")
    search_help_text = "Chat key, key hash (or its first 8 digits) or installation id of the recipient"
    search_hashes = (("public_key_hash", KEY_HASH_BYTES),)
    unread = PUSH_CONTENT

    @admin.display(description="type")
    def type_name(self, notification: Notification) -> str:
        return kind_of(notification)

    def matching_id(self, term: str) -> Q:
        """Return the condition by way of the registrations, because only these have an index of installation ids.

        The owners are read first: with a subquery, PostgreSQL reads the notifications of all owners.
        """
        spelled = spellings(term)
        owners = Registration.objects.filter(installation_id__in=spelled).values_list("public_key_hash", flat=True)
        return Q(installation_id__in=spelled, public_key_hash__in=list(owners.order_by("-pk")[:MAX_OWNERS]))


def kind_of(notification: Notification) -> str:
    """Return the type of a notification, or its grade if its bridge has grades."""
    return f"grade {notification.grade}" if notification.grade else type_name(notification.type)


def type_name(number: int) -> str:
    """Return the name of a type, or its number. Senders may use numbers that this server does not know."""
    known = number in {known.value for known in NotificationType}
    return NotificationType(number).name.lower().replace("_", " ") if known else f"type {number}"


@admin.register(Attempt)
class AttemptAdmin(FactAdmin):
    list_display = (
        word("notification_id", "notification"),
        link(lambda attempt: timeline_url(attempt.notification_id), "timeline"),
        number("number", "attempt"),
        "gateway",
        "token",
        word("app_topic", "app"),
        state("outcome"),
        word("code"),
        milliseconds("latency_ms", "latency"),
        age("started_at", "claimed"),
    )
    list_filter = (
        only("failed", ", ".join(FAILURES), Q(outcome__in=FAILURES)),  # neither dead tokens nor bad payloads
        ("outcome", WordFilter),
        ("code", RecentValuesFilter),
        during("ended_at", since="started_at"),
    )
    shown: ClassVar[Any] = {
        "Outcome": (
            state("outcome"),
            word("code"),
            word("error", "what the gateway said"),
            word("late_code", "reported later"),
            yes_no("is_probe", "sent as a probe"),
            yes_no("is_counted", "counts as a failure of its address"),
            moment("started_at", "claimed"),
            moment("began_at", "began"),
            moment("ended_at", "ended"),
            milliseconds("waited_ms", "first push after"),
            milliseconds("latency_ms", "latency"),
        ),
        "Push": (
            link(lambda attempt: notification_url(attempt.notification_id), "notification", "its notification"),
            number("number", "attempt"),
            "gateway",
            "token",
            word("app_topic", "app"),
        ),
    }
    linked_by = ("notification__id__exact",)

    @admin.display(description="token type")
    def token(self, attempt: Attempt) -> str:
        return name_of(attempt.token_type)
