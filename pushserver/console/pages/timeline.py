"""Timelines of notifications and requests, from the envelope to the answer to the sender, with the next steps.

A push that was decided at once has no row of its own, so the timeline of its request shows it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from operator import attrgetter

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.models import LogEntry
from django.contrib.auth.decorators import permission_required
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from kit.display import host_of
from kit.telemetry import trace_of
from notifications.messages import Effect
from notifications.models import Attempt, Halt, Notification, NotificationRequest
from notifications.rules.reports import unpack
from pushserver.console.notifications.admin import kind_of, notification_url, request_url, timeline_url, type_name
from pushserver.console.pages.labels import CLASSES, NO_SUCH_NOTIFICATION, NOTHING_LEFT, PROBED
from pushserver.console.pages.links import links_to_recipient
from pushserver.console.pages.menu import NOTIFICATIONS
from pushserver.console.pages.outlook import (
    line_of,
    line_of_request,
    next_steps,
    next_steps_of_answer,
    shortened,
    why_decided,
    why_ended,
)
from pushserver.console.pages.story import (
    A_MOMENT,
    HALT_ENDS,
    Story,
    envelope_of,
    halt_of,
    load_story,
    replies_to,
    staff_actions,
)
from pushserver.console.registrations.admin import route_url
from pushserver.console.toolkit.changes import change_url
from pushserver.console.toolkit.labels import label
from pushserver.console.toolkit.links import Link
from pushserver.console.toolkit.lists.columns import NOTHING, SHORT_DIGITS, as_digits, hex_of, state
from pushserver.console.toolkit.lists.search import is_number
from pushserver.console.toolkit.times import in_words
from pushserver.console.waku.admin import envelope_url
from waku_bridge.models import InboundEnvelope, OutboundReply

State = Notification.State
MAX_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the timeline. ``state`` is its outcome. ``is_before`` marks a halt that began before the request."""

    at: datetime
    heading: str
    detail: str = ""
    state: str = ""
    is_before: bool = False


@require_safe
@permission_required(NOTIFICATIONS, raise_exception=True)
def show_timeline(request: HttpRequest, object_id: str) -> HttpResponse:
    """Show the timeline of a notification."""
    story = load_story(int(object_id)) if is_number(object_id) else None
    if story is None:
        messages.warning(request, NO_SUCH_NOTIFICATION)
        return HttpResponseRedirect(reverse("find"))
    own = {"facts": _facts(story), "links": list(_links(story)), "next": list(next_steps(story))}
    title = f"Timeline of notification {story.notification.pk}"
    return _page(request, title, list(steps_of(story, request)), {"line": line_of(story), **own})


def _page(request: HttpRequest, title: str, steps: Sequence[Step], own: dict[str, object]) -> TemplateResponse:
    total = in_words(steps[-1].at - next(step.at for step in steps if not step.is_before))
    context = {"title": title, "table": _table(steps), "total": total, **own}
    return TemplateResponse(request, "console/timeline.html", {**admin.site.each_context(request), **context})


@require_safe
@permission_required(NOTIFICATIONS, raise_exception=True)
def show_request_timeline(request: HttpRequest, object_id: str) -> HttpResponse:
    """Show the timeline of a request, with the decisions that were made at once about its places."""
    pk = int(object_id) if is_number(object_id) else 0
    asked = NotificationRequest.objects.defer("reply_address", "names").filter(pk=pk).first()
    if asked is None:
        messages.warning(request, NO_SUCH_NOTIFICATION)
        return HttpResponseRedirect(reverse("find"))
    envelope, replies = envelope_of(asked), replies_to(asked)
    staff = staff_actions({NotificationRequest: [str(asked.pk)]}, asked.received_at, None)
    steps = [
        *_arrival(envelope, asked),
        *_decided(asked),
        *_answer(asked, replies),
        *_acted(staff, request, since=asked.received_at),
    ]
    own = {"facts": _ids(asked), "links": list(_links_of_request(asked, envelope)), "next": list(_rest_of(asked))}
    ordered = sorted(steps, key=lambda step: step.at)
    title = f"Timeline of request {hex_of(asked.request_key)[:SHORT_DIGITS]}"
    return _page(request, title, ordered, {"line": line_of_request(asked, asked.notifications.count()), **own})


def _links_of_request(asked: NotificationRequest, envelope: InboundEnvelope | None) -> Iterator[Link]:
    yield Link("Request", request_url(asked.pk))
    for pk in asked.notifications.order_by("position").values_list("pk", flat=True)[:MAX_SHOWN]:
        yield Link(f"Notification {pk}", timeline_url(pk))
    if envelope:
        yield Link("Envelope", envelope_url(envelope.hash))


def _rest_of(asked: NotificationRequest) -> Iterator[str]:
    yield from next_steps_of_answer(asked, [])
    if asked.state != NotificationRequest.State.WAITING:
        yield NOTHING_LEFT


def steps_of(story: Story, request: HttpRequest) -> Iterator[Step]:
    """Yield the steps by time. Steps of the same moment stay in causal order."""
    created = Step(story.notification.created_at, "Notification created", kind_of(story.notification))
    asked = [*_arrival(story.envelope, story.request), created, *_shortened(story), *_decided(story.request)]
    answer = _answer(story.request, story.replies, story.notification)
    acted = _acted(story.staff, request, since=story.request.received_at)
    yield from sorted(
        [*_halted(story), *asked, *_attempts(story), *acted, *_end(story), *answer], key=lambda step: step.at
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
    """Yield each decision that was made at once about a place of the request, with its check or wish."""
    for one in unpack(request.decided):
        about = f"place {one.position} of the request, {type_name(one.type)}. " if one.type else ""
        yield Step(request.received_at, "Decided at once:", f"{about}{why_decided(one)}", one.verdict)


def _shortened(story: Story) -> Iterator[Step]:
    if story.notification.shortened_by:
        yield Step(story.notification.created_at, "Beyond a limit:", shortened(story.notification), Effect.SHORTENED)


def _halted(story: Story) -> Iterator[Step]:
    """Yield the beginnings and ends of halts for which no staff action stands."""
    until = story.notification.finished_at
    for halt in story.halts:
        if not halt.by:
            is_before = halt.since < story.request.received_at
            yield Step(halt.since, "Halted by the server:", halt.reason or halt.gateway, halt.kind, is_before)
        if halt.ended_at and not halt.ended_by and (until is None or halt.ended_at < until):
            yield Step(halt.ended_at, "Halt ended by the server:", PROBED[Halt.Kind(halt.kind)])


def _acted(staff: Sequence[LogEntry], request: HttpRequest, since: datetime) -> Iterator[Step]:
    """Yield the staff actions, linked to the log of changes for people who may read it. Halts have own headings."""
    may_read = request.user.has_perm("admin.view_logentry")
    for entry in staff:
        begun, ended = halt_of(entry), entry.change_message.startswith(HALT_ENDS)
        message = entry.get_change_message()
        text = message if begun or ended or not entry.content_type else f"{entry.content_type.name}: {message}"
        linked = format_html('<a href="{}">{}</a>', change_url(entry), text)
        heading = f"{'Halted by' if begun else 'Halt ended by' if ended else 'By'} {entry.user.get_username()}:"
        yield Step(entry.action_time, heading, linked if may_read else text, begun, entry.action_time < since)


# Attempts with these fields in common are one step of a timeline.
ALIKE = attrgetter("gateway", "outcome", "code", "error", "late_code", "is_probe")


def _attempts(story: Story) -> Iterator[Step]:
    """Yield each attempt. Attempts that failed like the one before them become one step, at the time of the last."""
    for _, alike in groupby(story.attempts, ALIKE):
        first, *again = alike
        waited = f", {in_words(_ms(first.waited_ms))} after its message arrived" if first.waited_ms is not None else ""
        where = f"at {first.gateway}{waited}{_as_probe(first)}"
        yield Step(first.began_at or first.started_at, f"Attempt {first.number} started", where)
        if first.outcome is None:
            continue
        took = _ms(first.latency_ms or 0)
        late = f"; the gateway reported later: {first.late_code}" if first.late_code else ""
        known = f"after {in_words(took)}" if first.latency_ms is not None else "after an unknown time"
        detail = format_html("{}{}{}. {}", known, _error(first, story), late, CLASSES[first.outcome])
        yield Step(first.ended_at or first.started_at + took, f"Attempt {first.number}:", detail, first.outcome)
        if again:
            number, last = again[0].number, again[-1]
            which = f"Attempts {number} to {last.number}:" if last.number > number else f"Attempt {number}:"
            again_alike = f"as attempt {first.number}; this is when the last ended"
            yield Step(last.ended_at or last.started_at, which, again_alike, first.outcome)


def _ms(number: int) -> timedelta:
    return timedelta(milliseconds=number)


def _as_probe(attempt: Attempt) -> str:
    return ", as a probe: the breaker of its app was open, or its gateway was unreachable" if attempt.is_probe else ""


def _error(attempt: Attempt, story: Story) -> str:
    """Return the code of an attempt, the error text of the gateway, and a link to the rule that classified it."""
    if not attempt.code:
        return ""
    message = format_html(", “{}”", attempt.error) if attempt.error else ""
    url = story.rule_urls.get(attempt.pk)
    if url is None:
        return format_html(" ({}{})", attempt.code, message)
    return format_html(' ({}{}, by <a href="{}">its rule</a>)', attempt.code, message, url)


def _end(story: Story) -> Iterator[Step]:
    finished_at = story.notification.finished_at
    if finished_at:
        # The batch that recorded the last result may have begun just before the result arrived.
        results = [each.ended_at for each in story.attempts if each.ended_at and each.ended_at < finished_at + A_MOMENT]
        yield Step(max([finished_at, *results]), "Finished:", why_ended(story), story.notification.state)


def _answer(
    request: NotificationRequest, replies: Sequence[OutboundReply], notification: Notification | None = None
) -> Iterator[Step]:
    report = f"the answer to the sender is {notification.report}" if notification and notification.report else ""
    if notification and notification.grade:
        yield Step(request.received_at, "Answered", "the user's server gets the answer that it is stored")
    elif request.answered_at:
        yield Step(request.answered_at, "Reply recorded", report)
    for reply in replies:
        if reply.published_at:
            tries = "" if reply.attempt_count == 1 else f", at try {reply.attempt_count}"
            yield Step(reply.published_at, "Reply published", f"by {host_of(reply.node)}{tries}")
        if reply.confirmed_at:
            yield Step(reply.confirmed_at, "Reply confirmed", "a store has it")


def _table(steps: Sequence[Step]) -> dict[str, object]:
    """Return the table of the steps. Each row has the time since the last one, unless that was before the request."""
    gaps = [NOTHING if first.is_before else f"+{in_words(then.at - first.at)}" for first, then in pairwise(steps)]
    return {
        "headers": ["time (UTC)", "since the last", "event", "detail"],
        "rows": [
            [_clock(step), gap, _heading(step), step.detail or NOTHING]
            for step, gap in zip(steps, [NOTHING, *gaps], strict=True)
        ],
    }


def _heading(step: Step) -> SafeString:
    return format_html("<strong>{}</strong> {}", step.heading, label(step.state) if step.state else "")


def _clock(step: Step) -> str:
    text = f"{step.at:%Y-%m-%d %H:%M:%S}.{step.at.microsecond // 1000:03}"
    return format_html('<time datetime="{}">{}</time>', step.at.isoformat(), text)


def _facts(story: Story) -> list[tuple[str, object]]:
    notification = story.notification
    facts: list[tuple[str, object]] = [
        ("state", state("state")(notification)),
        ("report to the sender", state("report")(notification)),
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
    """Yield the id of the trace of a request, if it is traced, linked to its page in the tracing tool."""
    trace = trace_of(bytes(request.source_key))
    if trace is None:
        return
    digits = as_digits(trace.id.hex())
    page = settings.TRACE_PAGE.replace("{trace_id}", trace.id.hex())
    yield "trace", format_html('<a href="{}">{}</a>', page, digits) if page else digits


def _links(story: Story) -> Iterator[Link]:
    yield from links_to_recipient(story.notification)
    yield Link("Notification", notification_url(story.notification.pk))
    yield Link("Request", request_url(story.request.pk))
    if story.route:
        yield Link("Route", route_url(story.route.pk))
    if story.envelope:
        yield Link("Envelope", envelope_url(story.envelope.hash))
