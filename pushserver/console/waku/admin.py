"""Console pages of envelopes, faults, replies, store watermarks and dead letters."""

import re
from typing import Any, ClassVar

from django.conf import settings
from django.contrib import admin
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.expressions import RawSQL
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html

from kit.db.partitions import UNDER_WAY
from kit.processes.leader import WAKU_BRIDGE, holders
from notifications.models import NotificationRequest
from pushserver.console.toolkit.columns import (
    NOTHING,
    age,
    full_hash,
    hex_of,
    host,
    link,
    moment,
    number,
    short_hash,
    state,
    word,
)
from pushserver.console.toolkit.facts import FactAdmin
from pushserver.console.toolkit.lists import LabelFilter, RecentValuesFilter, WordFilter, during, only
from pushserver.console.toolkit.operations import Operated
from pushserver.console.toolkit.search import by_hash, hash_digits
from pushserver.console.toolkit.times import relative
from pushserver.console.waku.operations import (
    DropEnvelopes,
    DropLetters,
    ProcessAgain,
    ProcessAllAgain,
    ReadLettersAgain,
)
from waku_bridge.models import (
    LOST_REPLIES,
    DeadLetter,
    EndedEnvelope,
    EndedReply,
    EnvelopeFault,
    InboundEnvelope,
    OutboundReply,
    StoreWatermark,
)

HASH_BYTES = 32
# Limit of the requests whose id begins with the digits of a search. Only very few digits match more.
MAX_REQUESTS = 100
MAX_FAILED_COUNTED = 1000
MAX_LOST = 1000  # replies in a list of lost ones
IS_KEPT = Exists(EndedEnvelope.objects.filter(state=EndedEnvelope.State.FAILED, fault=OuterRef("pk")))
COUNT_FAILED = f"""
    SELECT count(*) FROM (
        SELECT FROM waku_bridge_endedenvelope
        WHERE state = '{EndedEnvelope.State.FAILED}' AND fault_id = waku_bridge_envelopefault.id LIMIT %s
    ) AS found
"""


def envelope_url(envelope_hash: bytes) -> str:
    return reverse("admin:waku_bridge_inboundenvelope_change", args=[hex_of(envelope_hash)])


def fault_url(fault_id: int | None) -> str:
    return reverse("admin:waku_bridge_envelopefault_change", args=[fault_id]) if fault_id else ""


@admin.register(InboundEnvelope)
class InboundEnvelopeAdmin(Operated, FactAdmin):
    operations: ClassVar[Any] = {"again": ProcessAgain, "drop": DropEnvelopes}
    list_display = (
        short_hash("hash", "envelope"),
        "message_type",
        state("state"),
        word("reason"),
        host("source", "from"),
        word("path"),
        age("received_at"),
        age("processed_at", "processed"),
    )
    list_filter = (
        ("state", WordFilter),
        ("message_type", LabelFilter),
        ("reason", RecentValuesFilter),
    )
    ordering = ("-received_at",)
    shown: ClassVar[Any] = {
        "Envelope": (
            state("state"),
            word("reason"),
            link(lambda envelope: fault_url(envelope.fault_id), "fault", "the fault"),
            "message_type",
            full_hash("hash", "envelope hash"),
            full_hash("message_id", "metadata message id"),
        ),
        "Where it came from": (host("source", "node"), word("path"), "pubsub_topic", "content_topic"),
        "Times": (
            moment("received_at", "received"),
            moment("processed_at", "processed"),
        ),
    }
    search_help_text = "Envelope hash, or the metadata message id of a request (or its first 8 digits)"
    search_hashes = (("hash", HASH_BYTES),)
    unread = ("payload",)
    linked_by = ("fault__id__exact",)

    def matching(self, term: str) -> Q:
        """Return the condition for envelopes. A message id is searched in requests: envelopes have no index of it."""
        digits = hash_digits(term)
        asked_by = by_hash(digits, (("request_key", HASH_BYTES),)) if digits else Q()
        if not asked_by:
            return super().matching(term)
        # The requests are read first: with "or in (select ...)" the database would read every envelope.
        requests = NotificationRequest.objects.filter(asked_by).values_list("source_key", flat=True)
        return super().matching(term) | Q(hash__in=list(requests[:MAX_REQUESTS]))


def failed_url(fault: EnvelopeFault) -> str:
    return f"{reverse('admin:waku_bridge_inboundenvelope_changelist')}?state__exact=failed&fault__id__exact={fault.pk}"


def again_url(fault: Any) -> str:
    url = f"{reverse('admin:waku_bridge_envelopefault_operate', args=['again'])}?id={fault.pk}"
    return url if fault.failed_count else ""


@admin.register(EnvelopeFault)
class EnvelopeFaultAdmin(Operated, FactAdmin):
    """Faults of ours, each with the number of the envelopes that wait until it is repaired."""

    operations: ClassVar[Any] = {"again": ProcessAllAgain}
    list_display = (
        word("error"),
        word("location"),
        number("line", "line, the last time"),
        number("count", "times"),
        age("last_seen_at", "last"),
        age("first_seen_at", "first"),
        "waiting",
    )
    list_filter = (only("waiting", "some wait", Q(IS_KEPT), title="envelopes"),)
    ordering = ("-last_seen_at", "-pk")
    shown: ClassVar[Any] = {
        "Fault": (
            word("error"),
            word("location"),
            number("line", "line, the last time"),
            number("count", "times"),
            "waiting",
        ),
        "Times": (moment("first_seen_at", "first"), moment("last_seen_at", "last")),
    }

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the faults with the number of envelopes that wait, counted up to `MAX_FAILED_COUNTED` for each."""
        counted = RawSQL(COUNT_FAILED, [MAX_FAILED_COUNTED + 1])  # noqa: S611 - a text of ours
        faults: QuerySet[Any] = super().get_queryset(request).annotate(failed_count=counted)
        return faults

    def get_list_display(self, request: HttpRequest) -> Any:
        """Add a column with the operation for operators who may carry it out."""
        again = link(again_url, "again", ProcessAllAgain.label)
        return (*self.list_display, *([again] if self.allowed(request) else []))

    @admin.display(description="envelopes that wait")
    def waiting(self, fault: Any) -> str:
        if not fault.failed_count:
            return "none"
        more = " or more" if fault.failed_count > MAX_FAILED_COUNTED else ""
        return format_html(
            '<a href="{}">{}{}</a>', failed_url(fault), min(fault.failed_count, MAX_FAILED_COUNTED), more
        )


def newest_lost(**condition: str) -> QuerySet[Any]:
    """Return the ids of the newest lost replies that meet the condition, in the order of their index.

    In the order of ids, PostgreSQL would walk through all replies that are newer.
    """
    lost = EndedReply.objects.filter(LOST_REPLIES, **condition).order_by("-created_at")
    return lost.values_list("pk", flat=True)[:MAX_LOST]


class ReplyStateFilter(WordFilter):
    """A filter for the state of replies. Those in an open state are in the work table alone."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        found: QuerySet[Any] = super().queryset(request, queryset)
        asked: Any = self.used_parameters.get(self.lookup_kwarg, ())
        if "abandoned" in asked:
            return found.filter(pk__in=list(newest_lost(state="abandoned")))
        return found.filter(ended_on=UNDER_WAY) if {"pending", "published"}.intersection(asked) else found


@admin.display(description="next attempt")
def next_attempt(reply: OutboundReply) -> str:
    """Show when a node or a store is asked next."""
    return relative(reply.due_at) if reply.due_at else NOTHING


@admin.register(OutboundReply)
class OutboundReplyAdmin(FactAdmin):
    list_display = (
        word("pk", "reply"),
        short_hash("envelope_hash", "answers"),
        "message_type",
        state("state"),
        number("attempt_count", "attempts"),
        number("repeat_count", "repeats"),
        host("node", "taken by"),
        age("created_at"),
        next_attempt,
        age("published_at", "published"),
        age("confirmed_at", "confirmed"),
    )
    list_filter = (
        ("state", ReplyStateFilter),
        only("lost", "may not have reached anybody", lambda: Q(pk__in=list(newest_lost()))),
    )
    shown: ClassVar[Any] = {
        "Reply": (
            state("state"),
            "message_type",
            full_hash("envelope_hash", "answers envelope"),
            number("part"),
        ),
        "Publishing": (
            host("node", "taken by"),
            number("attempt_count", "attempts"),
            number("repeat_count", "repeats"),
            full_hash("message_hash", "message hash, at the stores"),
            "pubsub_topic",
            "content_topic",
        ),
        "Times": (
            moment("created_at", "created"),
            next_attempt,
            moment("published_at", "published"),
            moment("confirmed_at", "confirmed"),
        ),
    }
    search_help_text = "Hash of the envelope it answers (or its first 8 digits)"
    search_hashes = (("envelope_hash", HASH_BYTES),)
    unread = ("payload",)


@admin.register(StoreWatermark)
class StoreWatermarkAdmin(FactAdmin):
    """The page of stores: how far each was read."""

    list_display = (host("node"), "pubsub_topic", age("watermark_at", "read up to"), "is_still_read")
    shown: ClassVar[Any] = {
        "Store": (
            host("node"),
            "pubsub_topic",
            "is_still_read",
            moment("watermark_at", "read up to"),
            moment("late_searched_at", "searched for late messages"),
        ),
        "Reader": ("reader",),
    }

    @admin.display(description="still read")
    def is_still_read(self, row: StoreWatermark) -> str:
        """Return whether the settings still have the node and the topic. The watermark of a former node only ages."""
        is_configured = row.node in settings.WAKU_STORE_NODES and row.pubsub_topic in settings.WAKU_PUBSUB_TOPICS
        return "yes" if is_configured else "no: a former node, or a former topic"

    @admin.display(description="read by")
    def reader(self, _row: StoreWatermark) -> str:
        """Return host and process of the bridge that reads at the moment."""
        return ", ".join(holders(WAKU_BRIDGE)) or "no bridge"


# Matches a value named payload, of any type, and every value of at least 70 characters.
_PAYLOAD = re.compile(r"""(?<="payload": )(?:"(?:[^"\\]|\\.)*"?|\[[^\]]*\]?)|[A-Za-z0-9+/=_-]{70,}""")


@admin.register(DeadLetter)
class DeadLetterAdmin(Operated, FactAdmin):
    operations: ClassVar[Any] = {"again": ReadLettersAgain, "drop": DropLetters}
    list_display = (
        short_hash("digest", "letter"),
        word("reason"),
        "content_topic",
        "size_bytes",
        host("source", "from"),
        word("path"),
        age("received_at"),
    )
    list_filter = (("reason", RecentValuesFilter), during("received_at"))
    ordering = ("-received_at",)
    shown: ClassVar[Any] = {
        "Dead letter": (
            word("reason"),
            moment("received_at", "received"),
            full_hash("digest", "SHA-256"),
            "size_bytes",
        ),
        "Where it came from": (host("source", "node"), word("path"), "pubsub_topic", "content_topic"),
        "As the node wrote it, without payloads": ("raw_without_payloads",),
    }
    search_help_text = "SHA-256 of the raw message (or its first 8 digits)"
    search_hashes = (("digest", HASH_BYTES),)

    @admin.display(description="message")
    def raw_without_payloads(self, letter: DeadLetter) -> str:
        return without_payloads(letter.raw)


def without_payloads(raw: str) -> str:
    """Return a message with its payloads replaced by their lengths."""
    return _PAYLOAD.sub(lambda found: f"({len(found[0])} characters)", raw)
