"""The timelines of notifications and requests: from the envelope to the answer that the sender got, and what comes
next.

What is decided at once has no row of its own, so that its story is the one of its request.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from operator import attrgetter

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db.models import Model, Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from kit.admin.changes import change_url
from kit.admin.labels import label
from kit.admin.links import Link
from kit.admin.lists.columns import NOTHING, SHORT_DIGITS, as_digits, hex_of, state
from kit.admin.times import exact
from kit.http.urls import host_of
from kit.operations import parts
from kit.tracing.spans import trace_of
from notifications.admin import notification_url, request_url, type_name
from notifications.messages import channel_key
from notifications.models import Attempt, Channel, Halt, Notification, NotificationRequest
from notifications.queues import halts
from notifications.rules.reports import unpack
from pushserver.console.drain import DRAIN_ID
from pushserver.console.frame.links import links_to_recipient
from pushserver.console.support.labels import CLASSES, ENDS, VERDICTS, WISHES
from registrations.admin import ROUTE_SECRETS, route_url
from registrations.models import Registration, Route
from waku_bridge.admin import envelope_url
from waku_bridge.models import InboundEnvelope, OutboundReply

State = Notification.State
NO_SUCH_NOTIFICATION = "There is no such notification, or it is kept no longer."
# A disabling ends what waits in the same transaction, and is logged a moment later.
A_MOMENT = timedelta(seconds=5)

MAX_ID_LENGTH = 19  # of digits: a number of the database has fewer
MAX_SHOWN = 20
MAX_STEPS = 50

HALTED = {
    Halt.Kind.DRAINED: "Delivery is stopped: it waits until somebody starts it again.",
    Halt.Kind.UNREACHABLE: "Its gateway {halt.gateway} cannot be reached: it waits until a probe reaches it.",
    Halt.Kind.PAUSED: "Its app is paused: {halt.reason}",
    Halt.Kind.TRIPPED: "Its app is tripped: {halt.reason}",
}
# A confirmed reply needs no words.
REPLIES = {
    OutboundReply.State.PENDING: "The reply waits to be published; the next try is due {when}.",
    OutboundReply.State.PUBLISHED: "A node took the reply; whether a store has it is looked up {when}.",
    OutboundReply.State.UNCONFIRMED: "No store was found to have the reply: the sender may not have got it.",
    OutboundReply.State.ABANDONED: "No node took the reply while anybody could wait for it: the sender got none.",
}


@dataclass(frozen=True, slots=True)
class Story:
    """All rows that are kept of one notification. Envelopes and replies are deleted sooner than notifications."""

    notification: Notification
    request: NotificationRequest
    route: Route | None
    envelope: InboundEnvelope | None
    attempts: Sequence[Attempt]
    replies: Sequence[OutboundReply]
    channel: Channel | None
    halts: Sequence[Halt]
    staff: Sequence[LogEntry] = ()
    rule_urls: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the timeline. ``state`` is its outcome."""

    at: datetime
    heading: str
    detail: str = ""
    state: str = ""


@require_safe
def show_timeline(request: HttpRequest, object_id: str) -> HttpResponse:
    """Show the timeline of a notification."""
    if not request.user.has_perm("notifications.view_notification"):
        raise PermissionDenied
    story = load_story(int(object_id)) if object_id.isdecimal() and len(object_id) < MAX_ID_LENGTH else None
    if story is None:
        messages.warning(request, NO_SUCH_NOTIFICATION)
        return HttpResponseRedirect(reverse("find"))
    own = {"facts": _facts(story), "links": list(_links(story)), "next": list(what_comes_next(story))}
    return _page(request, f"Timeline of notification {story.notification.pk}", list(steps_of(story, request)), own)


def _page(request: HttpRequest, title: str, steps: Sequence[Step], own: dict[str, object]) -> TemplateResponse:
    total = in_words(steps[-1].at - steps[0].at)
    context = {"title": title, "table": _table(steps), "total": total, **own}
    return TemplateResponse(request, "console/timeline.html", {**admin.site.each_context(request), **context})


@require_safe
def show_request_timeline(request: HttpRequest, object_id: str) -> HttpResponse:
    """Show the timeline of a request, with what was decided at once about each of its places."""
    if not request.user.has_perm("notifications.view_notification"):
        raise PermissionDenied
    pk = int(object_id) if object_id.isdecimal() and len(object_id) < MAX_ID_LENGTH else 0
    asked = NotificationRequest.objects.defer("reply_address", "decided_names").filter(pk=pk).first()
    if asked is None:
        messages.warning(request, NO_SUCH_NOTIFICATION)
        return HttpResponseRedirect(reverse("find"))
    envelope, replies = _envelope_of(asked), _replies_to(asked)
    staff = staff_actions({NotificationRequest: [str(asked.pk)]}, asked.received_at, None)
    steps = [*_arrival(envelope, asked), *_decided(asked), *_answer(asked, replies), *_acted(staff, request)]
    own = {"facts": _ids(asked), "links": list(_links_of_request(asked, envelope)), "next": list(_rest_of(asked))}
    ordered = sorted(steps, key=lambda step: step.at)
    return _page(request, f"Timeline of request {hex_of(asked.request_key)[:SHORT_DIGITS]}", ordered, own)


def _links_of_request(asked: NotificationRequest, envelope: InboundEnvelope | None) -> Iterator[Link]:
    yield Link("Request", request_url(asked.pk))
    for pk in asked.notifications.order_by("position").values_list("pk", flat=True)[:MAX_SHOWN]:
        yield Link(f"Notification {pk}", reverse("timeline", args=[pk]))
    if envelope:
        yield Link("Envelope", envelope_url(envelope.hash))


def _rest_of(asked: NotificationRequest) -> Iterator[str]:
    if asked.state == NotificationRequest.State.WAITING:
        yield f"The sender is answered when all was tried once, or {_when(asked.reply_due_at)}."
    else:
        yield "Nothing for what was decided at once; each notification has a timeline of its own."


def load_story(notification_id: int) -> Story | None:
    """Load all rows of a notification, with ten look-ups by index however long its story is."""
    rows = Notification.objects.defer("chat_id", "message", "dedup_key", "collapse_id", "request__reply_address")
    notification = rows.select_related("request").filter(pk=notification_id).first()
    if notification is None:
        return None
    request = notification.request
    routes = Route.objects.defer(*ROUTE_SECRETS)
    route = routes.filter(pk=notification.route_id or 0).first()
    channel = None
    if route is not None:
        key = channel_key(route.token_type, route.app_topic)
        channel = Channel.objects.filter(**key._asdict()).first()
    attempts = list(Attempt.objects.filter(notification=notification).order_by("number"))
    return Story(
        notification=notification,
        request=request,
        route=route,
        envelope=_envelope_of(request),
        attempts=attempts,
        replies=_replies_to(request),
        channel=channel,
        halts=halts.covering_route(route) if route else [],
        staff=staff_actions(_subjects(notification, channel), notification.created_at, notification.finished_at),
        rule_urls={pk: url for part in parts() for pk, url in part.rule_urls(attempts).items()},
    )


def _envelope_of(request: NotificationRequest) -> InboundEnvelope | None:
    return InboundEnvelope.objects.defer("payload").filter(pk=request.source_key).first()


def _replies_to(request: NotificationRequest) -> list[OutboundReply]:
    return list(OutboundReply.objects.defer("payload").filter(envelope_hash=request.source_key).order_by("part"))


def _subjects(notification: Notification, channel: Channel | None) -> dict[type[Model], list[str]]:
    """Return the rows on which staff may have acted in a way that changed the course of a notification."""
    owners = Registration.objects.filter(
        public_key_hash=notification.public_key_hash, installation_id=notification.installation_id
    )
    return {
        Notification: [str(notification.pk)],
        NotificationRequest: [str(notification.request_id)],
        Registration: [str(pk) for pk in owners.values_list("pk", flat=True)],
        **{type(row): [str(row.pk)] for part in parts() if (row := part.owner_of(notification))},
        Channel: [str(channel.pk)] if channel else [],
        Halt: [DRAIN_ID],
    }


def staff_actions(
    subjects: Mapping[type[Model], Collection[str]], since: datetime, until: datetime | None
) -> list[LogEntry]:
    """Return what staff did to these rows within a time, found by the index over subjects."""
    condition = Q(pk=None)
    for model, ids in subjects.items():
        condition |= Q(content_type=ContentType.objects.get_for_model(model), object_id__in=ids)
    entries = LogEntry.objects.filter(condition, action_time__gte=since)
    entries = entries.filter(action_time__lte=until + A_MOMENT) if until else entries
    return list(entries.select_related("user", "content_type").order_by("pk")[:MAX_STEPS])


def steps_of(story: Story, request: HttpRequest) -> Iterator[Step]:
    """Yield the steps by time. Steps of the same moment stay in the order of their causes."""
    created = Step(story.notification.created_at, "Notification created", _kind(story.notification))
    asked = [*_arrival(story.envelope, story.request), created, *_decided(story.request)]
    answer = _answer(story.request, story.replies, story.notification)
    yield from sorted(
        [*asked, *_attempts(story), *_acted(story.staff, request), *_end(story), *answer], key=lambda step: step.at
    )


def _arrival(envelope: InboundEnvelope | None, request: NotificationRequest) -> Iterator[Step]:
    if envelope:
        yield Step(envelope.received_at, "Envelope received", f"from {host_of(envelope.source)}, path {envelope.path}")
    if envelope and envelope.processed_at:
        yield Step(
            envelope.processed_at, "Envelope processed", " ".join(filter(None, [envelope.state, envelope.reason]))
        )
    yield Step(request.received_at, "Request accepted", f"through {request.bridge}")


def _decided(request: NotificationRequest) -> Iterator[Step]:
    """Yield what was decided at once about places of the request, and by which check or wish."""
    for one in unpack(request.decided):
        about = f"place {one.position} of the request, {type_name(one.type)}. " if one.type else ""
        why = WISHES[one.wish] if one.wish else VERDICTS[one.verdict]
        yield Step(request.received_at, "Decided at once:", f"{about}{why}", one.verdict)


def _acted(staff: Sequence[LogEntry], request: HttpRequest) -> Iterator[Step]:
    """Yield what staff did, linked to the log of changes for those who may read it."""
    may_read = request.user.has_perm("admin.view_logentry")
    for entry in staff:
        message = entry.get_change_message()
        heading = f"{entry.content_type.name}: {message}" if entry.content_type else message
        linked = format_html('<a href="{}">{}</a>', change_url(entry), heading)
        yield Step(entry.action_time, f"By {entry.user.get_username()}:", linked if may_read else heading)


def _kind(notification: Notification) -> str:
    """Return the type of a notification, or the grade where the bridge knows grades instead."""
    return f"grade {notification.grade}" if notification.grade else type_name(notification.type)


# What attempts have in common that are one step of a timeline.
ALIKE = attrgetter("gateway", "outcome", "code", "error", "late_code")


def _attempts(story: Story) -> Iterator[Step]:
    """Yield each attempt, but those that failed as the one before them as one step, at the time of the last."""
    for _, alike in groupby(story.attempts, ALIKE):
        first, *again = alike
        yield Step(first.started_at, f"Attempt {first.number} started", f"at {first.gateway}")
        if first.outcome is None:
            continue
        took = timedelta(milliseconds=first.latency_ms or 0)
        late = f"; the gateway reported later: {first.late_code}" if first.late_code else ""
        known = f"after {in_words(took)}" if first.latency_ms is not None else "nobody knows when"
        detail = format_html("{}{}{}. {}", known, _error(first, story), late, CLASSES[first.outcome])
        yield Step(first.started_at + took, f"Attempt {first.number}:", detail, first.outcome)
        if again:
            number, last = again[0].number, again[-1]
            which = f"Attempts {number} to {last.number}:" if last.number > number else f"Attempt {number}:"
            yield Step(last.started_at, which, f"as attempt {first.number}; this is when the last began", first.outcome)


def _error(attempt: Attempt, story: Story) -> str:
    """Return the code of an attempt, what the gateway said, and the rule by which it was read."""
    if not attempt.code:
        return ""
    message = format_html(", “{}”", attempt.error) if attempt.error else ""
    url = story.rule_urls.get(attempt.pk)
    if url is None:
        return format_html(" ({}{})", attempt.code, message)
    return format_html(' ({}{}, by <a href="{}">its rule</a>)', attempt.code, message, url)


def _end(story: Story) -> Iterator[Step]:
    notification = story.notification
    if notification.finished_at:
        yield Step(notification.finished_at, "Finished:", _why_ended(story), notification.state)


def _why_ended(story: Story) -> str:
    """Return what the last state means, and where it is known who or what brought it about."""
    notification = story.notification
    meaning = ENDS[State(notification.state)]
    return f"{meaning} {_why_withdrawn(story)}" if notification.state == State.WITHDRAWN else meaning


def _why_withdrawn(story: Story) -> str:
    for entry in reversed(story.staff):
        if entry.change_message.startswith(("Dropped", "Disabled", "Removed")):
            return f"{entry.user.get_username()} did it: {entry.change_message}"
    return "The recipient unregistered." if story.route is None else "Its recipient was gone or disabled."


def _answer(
    request: NotificationRequest, replies: Sequence[OutboundReply], notification: Notification | None = None
) -> Iterator[Step]:
    report = f"the sender is told {notification.report}" if notification and notification.report else ""
    if notification and notification.grade:
        yield Step(request.received_at, "Answered", "the user's server is told that it is stored")
    elif request.answered_at:
        yield Step(request.answered_at, "Reply recorded", report)
    for reply in replies:
        if reply.published_at:
            tries = "" if reply.attempt_count == 1 else f", with try {reply.attempt_count}"
            yield Step(reply.published_at, "Reply published", f"by {host_of(reply.node)}{tries}")
        if reply.confirmed_at:
            yield Step(reply.confirmed_at, "Reply confirmed", "a store has it")


def _table(steps: Sequence[Step]) -> dict[str, object]:
    """Return the table of the steps, each with the time since the one before."""
    gaps = [timedelta(0), *(later.at - earlier.at for earlier, later in pairwise(steps))]
    return {
        "headers": ["time (UTC)", "since the last", "heading", "detail"],
        "rows": [
            [_clock(step), f"+{in_words(gap)}", _heading(step), step.detail or NOTHING]
            for step, gap in zip(steps, gaps, strict=True)
        ],
    }


def _heading(step: Step) -> SafeString:
    return format_html("<strong>{}</strong> {}", step.heading, label(step.state) if step.state else "")


def _clock(step: Step) -> str:
    text = f"{step.at:%Y-%m-%d %H:%M:%S}.{step.at.microsecond // 1000:03}"
    return format_html('<time datetime="{}">{}</time>', step.at.isoformat(), text)


def in_words(span: timedelta) -> str:
    """Return a duration with as many digits as people need."""
    seconds = span.total_seconds()
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def what_comes_next(story: Story) -> Iterator[str]:
    """Yield what will happen next to the notification, its attempts and its answer."""
    notification = story.notification
    if notification.finished_at:
        yield "Nothing: it is over."
    elif notification.state == State.IN_FLIGHT:
        yield f"A worker is sending it. It counts as lost, and the push as unclear, {_when(notification.lease_until)}."
    else:
        yield from _before_next_attempt(story)
    if not notification.finished_at:
        yield f"It expires {_when(notification.expires_at)}."
    yield from _before_answer(story)


def _before_next_attempt(story: Story) -> Iterator[str]:
    for halt in story.halts:
        yield HALTED[Halt.Kind(halt.kind)].format(halt=halt)
    if story.route is None:
        yield "Its recipient unregistered: the next worker withdraws it."
    elif story.route.state != Route.State.ACTIVE:
        yield f"Its route is disabled ({story.route.disabled_reason}): the next worker closes it."
    yield f"The next attempt is due {_when(story.notification.next_attempt_at)}."


def _before_answer(story: Story) -> Iterator[str]:
    if story.request.state == NotificationRequest.State.WAITING:
        yield f"The sender is answered when all was tried once, or {_when(story.request.reply_due_at)}."
    for reply in story.replies:
        if reply.state in REPLIES:
            yield REPLIES[OutboundReply.State(reply.state)].format(when=_when(reply.next_attempt_at))


def _when(at: datetime | None) -> str:
    return f"at {exact(at)}" if at else "at no set time"


def _facts(story: Story) -> list[tuple[str, object]]:
    notification = story.notification
    facts: list[tuple[str, object]] = [
        ("state", state("state")(notification)),
        ("told the sender", state("report")(notification)),
        ("attempts", notification.attempt_count or "none"),
    ]
    if notification.grade:
        device = ("device", as_digits(notification.installation_id))
        return [*facts, ("grade", notification.grade), device, *_trace(story.request)]
    return [*facts, ("installation", as_digits(notification.installation_id)), *_ids(story.request)]


def _ids(request: NotificationRequest) -> list[tuple[str, object]]:
    return [
        ("Status message", as_digits(hex_of(request.message_id))),
        ("metadata message", as_digits(hex_of(request.request_key))),
        ("envelope", as_digits(hex_of(request.source_key))),
        *_trace(request),
    ]


def _trace(request: NotificationRequest) -> Iterator[tuple[str, object]]:
    """Yield the trace of a request, if it is traced: its id, linked to where people look at it."""
    trace = trace_of(bytes(request.source_key))
    if trace is None:
        return
    digits = as_digits(trace.id_hex)
    page = settings.TRACE_PAGE.replace("{trace_id}", trace.id_hex)
    yield "trace", format_html('<a href="{}">{}</a>', page, digits) if page else digits


def _links(story: Story) -> Iterator[Link]:
    yield from links_to_recipient(story.notification)
    yield Link("Notification", notification_url(story.notification.pk))
    yield Link("Request", request_url(story.request.pk))
    if story.route:
        yield Link("Route", route_url(story.route.pk))
    if story.envelope:
        yield Link("Envelope", envelope_url(story.envelope.hash))
