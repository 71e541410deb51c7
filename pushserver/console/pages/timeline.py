"""Timelines of notifications and requests, from the envelope to the answer to the sender, as a waterfall.

Each step is a row with its bar on one axis of time. A push that was decided at once has no row of its own, so the
timeline of its request shows it.
"""

from collections.abc import Iterable, Iterator, Sequence
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
from notifications.models import Attempt, Halt, NotificationRequest
from notifications.reports import unpack
from pushserver.console.notifications.admin import kind_of, notification_url, request_url, timeline_url, type_name
from pushserver.console.pages.labels import CLASSES, NO_SUCH_NOTIFICATION, PROBED
from pushserver.console.pages.links import links_to_recipient
from pushserver.console.pages.menu import NOTIFICATIONS
from pushserver.console.pages.story import (
    A_MOMENT,
    RequestStory,
    Story,
    answer_for_user,
    line_of,
    line_of_request,
    load_request,
    load_story,
    next_steps,
    next_steps_of_request,
    shortened,
    why_decided,
    why_ended,
)
from pushserver.console.registrations.admin import route_url
from pushserver.console.toolkit.columns import NOTHING, SHORT_DIGITS, as_digits, hex_of, state
from pushserver.console.toolkit.labels import FAMILIES, Family, label
from pushserver.console.toolkit.related import Link, change_url, reason_of
from pushserver.console.toolkit.search import is_number
from pushserver.console.toolkit.times import in_words
from pushserver.console.waku.admin import envelope_url

MAX_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the timeline. ``state`` is its outcome. ``since`` is the beginning of what ends with the step."""

    at: datetime
    heading: str
    detail: str = ""
    state: str = ""
    since: datetime | None = None


@require_safe
@permission_required(NOTIFICATIONS, raise_exception=True)
def show_timeline(request: HttpRequest, object_id: str) -> HttpResponse:
    """Show the timeline of a notification."""
    story = load_story(int(object_id)) if is_number(object_id) else None
    if story is None:
        return _not_found(request)
    may_read = request.user.has_perm("admin.view_logentry")
    own = {"line": line_of(story), "facts": _facts(story), "links": list(_links(story))}
    own |= {"next": list(next_steps(story)), "answer": answer_for_user(story)}
    title = f"Timeline of notification {story.notification.pk}"
    return _page(request, title, story, _steps(story, may_read=may_read), own)


@require_safe
@permission_required(NOTIFICATIONS, raise_exception=True)
def show_request_timeline(request: HttpRequest, object_id: str) -> HttpResponse:
    """Show the timeline of a request, with the decisions that were made at once about its places."""
    story = load_request(int(object_id)) if is_number(object_id) else None
    if story is None:
        return _not_found(request)
    may_read = request.user.has_perm("admin.view_logentry")
    steps = [*_arrival(story), *_decided(story), *_answer(story), *_acted(story.staff, may_read=may_read)]
    own = {"line": line_of_request(story.request, story.request.notifications.count()), "facts": _ids(story.request)}
    own |= {"links": list(_links_of_request(story)), "next": list(next_steps_of_request(story))}
    title = f"Timeline of request {hex_of(story.request.request_key)[:SHORT_DIGITS]}"
    return _page(request, title, story, steps, own)


def _not_found(request: HttpRequest) -> HttpResponse:
    messages.warning(request, NO_SUCH_NOTIFICATION)
    return HttpResponseRedirect(reverse("find"))


def _page(
    request: HttpRequest, title: str, story: RequestStory, steps: Iterable[Step], own: dict[str, object]
) -> TemplateResponse:
    ordered = sorted(steps, key=lambda step: step.at)  # steps of the same moment stay in causal order
    total = in_words(ordered[-1].at - story.begun_at)
    context = {"title": title, "table": _table(ordered, story.begun_at), "total": total, **own}
    return TemplateResponse(request, "console/timeline.html", {**admin.site.each_context(request), **context})


# Steps ----------------------------------------------------------------------------------------------------------------


def _steps(story: Story, *, may_read: bool) -> Iterator[Step]:
    notification = story.notification
    yield from _halted(story, may_read=may_read)
    yield from _arrival(story)
    yield Step(notification.created_at, "Notification created", kind_of(notification))
    if notification.shortened_by:
        yield Step(notification.created_at, "Beyond a limit:", shortened(notification), Effect.SHORTENED)
    yield from _decided(story)
    yield from _attempts(story)
    yield from _acted(story.staff_beside_halts, may_read=may_read)
    yield from _end(story)
    if notification.grade:
        yield Step(story.request.received_at, "Answered", "the user's server gets the answer that it is stored")
    else:
        yield from _answer(story, f"the answer to the sender is {notification.report}" if notification.report else "")


def _arrival(story: RequestStory) -> Iterator[Step]:
    if envelope := story.envelope:
        yield Step(envelope.received_at, "Envelope received", f"from {host_of(envelope.source)}, path {envelope.path}")
        if envelope.processed_at:
            detail = " ".join(filter(None, [envelope.state, envelope.reason]))
            yield Step(envelope.processed_at, "Envelope processed", detail, since=envelope.received_at)
    yield Step(story.request.received_at, "Request accepted", f"through {story.request.bridge}")


def _decided(story: RequestStory) -> Iterator[Step]:
    """Yield each decision that was made at once about a place of the request, with its check or wish."""
    for one in unpack(story.request.decided):
        about = f"place {one.position} of the request, {type_name(one.type)}. " if one.type else ""
        yield Step(story.request.received_at, "Decided at once:", f"{about}{why_decided(one)}", one.verdict)


def _halted(story: Story, *, may_read: bool) -> Iterator[Step]:
    """Yield the beginnings and ends of halts. The log of changes has why staff ended one."""
    until = story.notification.finished_at
    for halt in story.halts:
        reason = _linked(story.entry_of(halt.by, halt.since), halt.reason or halt.gateway, may_read=may_read)
        yield Step(halt.since, f"Halted by {halt.by or 'the server'}:", reason, halt.kind)
        if halt.ended_at is None or (until and halt.ended_at >= until):
            continue
        detail = PROBED.get(Halt.Kind(halt.kind), "")
        if halt.ended_by:
            entry = story.entry_of(halt.ended_by, halt.ended_at)
            why = reason_of(entry) if entry else ""
            detail = _linked(entry, f"it was {halt.kind}{f': {why}' if why else ''}", may_read=may_read)
        yield Step(halt.ended_at, f"Halt ended by {halt.ended_by or 'the server'}:", detail, since=halt.since)


def _acted(staff: Sequence[LogEntry], *, may_read: bool) -> Iterator[Step]:
    for entry in staff:
        what = f"{entry.content_type.name}: " if entry.content_type else ""
        detail = _linked(entry, f"{what}{entry.get_change_message()}", may_read=may_read)
        yield Step(entry.action_time, f"By {entry.user.get_username()}:", detail)


def _linked(entry: LogEntry | None, text: str, *, may_read: bool) -> str:
    """Link a text to its entry in the log of changes, for people who may read that log."""
    return format_html('<a href="{}">{}</a>', change_url(entry), text) if entry and may_read else text


# Attempts with these fields in common are one step of a timeline.
ALIKE = attrgetter("gateway", "outcome", "code", "error", "late_code", "is_probe")
AS_PROBE = ", as a probe: the breaker of its app was open, or its gateway was unreachable"


def _attempts(story: Story) -> Iterator[Step]:
    """Yield each attempt. Attempts that failed like the one before them become one step, at the time of the last."""
    for _, alike in groupby(story.attempts, ALIKE):
        first, *again = alike
        began_at = first.began_at or first.started_at
        waited = f", {in_words(_ms(first.waited_ms))} after its message arrived" if first.waited_ms is not None else ""
        where = f"at {first.gateway}{waited}{AS_PROBE if first.is_probe else ''}"
        yield Step(began_at, f"Attempt {first.number} started", where)
        if first.outcome is None:
            continue
        took = _ms(first.latency_ms or 0)
        late = f"; the gateway reported later: {first.late_code}" if first.late_code else ""
        known = f"after {in_words(took)}" if first.latency_ms is not None else "after an unknown time"
        detail = format_html("{}{}{}. {}", known, _error(first, story), late, CLASSES[first.outcome])
        ended_at = first.ended_at or first.started_at + took
        yield Step(ended_at, f"Attempt {first.number}:", detail, first.outcome, since=began_at)
        if again:
            number, last = again[0].number, again[-1]
            which = f"Attempts {number} to {last.number}:" if last.number > number else f"Attempt {number}:"
            again_alike = f"as attempt {first.number}; this is when the last ended"
            begun = again[0].began_at or again[0].started_at
            yield Step(last.ended_at or last.started_at, which, again_alike, first.outcome, since=begun)


def _ms(number: int) -> timedelta:
    return timedelta(milliseconds=number)


def _error(attempt: Attempt, story: Story) -> str:
    """Return the code of an attempt, the error text of the gateway, and a link to the rule that classified it."""
    if not attempt.code:
        return ""
    message = format_html(", “{}”", attempt.error) if attempt.error else ""
    url = story.rule_urls.get(attempt.pk)
    rule = format_html(', by <a href="{}">its rule</a>', url) if url else ""
    return format_html(" ({}{}{})", attempt.code, message, rule)


def _end(story: Story) -> Iterator[Step]:
    notification = story.notification
    if ended_at := notification.finished_at:
        # The batch that recorded the last result may have begun just before the result arrived.
        results = [each.ended_at for each in story.attempts if each.ended_at and each.ended_at < ended_at + A_MOMENT]
        at = max([ended_at, *results])
        yield Step(at, "Finished:", why_ended(story), notification.state, since=notification.created_at)


def _answer(story: RequestStory, report: str = "") -> Iterator[Step]:
    recorded_at = story.request.answered_at
    if recorded_at:
        yield Step(recorded_at, "Reply recorded", report, since=story.request.received_at)
    for reply in story.replies:
        if reply.published_at:
            tries = "" if reply.attempt_count == 1 else f", at try {reply.attempt_count}"
            node = f"by {host_of(reply.node)}{tries}"
            yield Step(reply.published_at, "Reply published", node, since=recorded_at)
        if reply.confirmed_at:
            yield Step(reply.confirmed_at, "Reply confirmed", "a store has it", since=reply.published_at)


# The waterfall --------------------------------------------------------------------------------------------------------


def _table(steps: Sequence[Step], begin: datetime) -> dict[str, object]:
    """Return the table of the steps. Each row has the time since the last one, unless that was before the beginning.

    Its bar goes from the beginning of what ended to the step, and a step that ended nothing is a mark. The other
    columns have times and details as text, so that a reader of the screen misses nothing.
    """
    gaps = [NOTHING if first.at < begin else f"+{in_words(then.at - first.at)}" for first, then in pairwise(steps)]
    total = max(steps[-1].at - begin, timedelta(milliseconds=1))
    return {
        "headers": ["time (UTC)", "since the last", "event", f"0 to {in_words(total)}", "detail"],
        "rows": [
            [_clock(step), gap, _heading(step), _bar(step, begin, total), step.detail or NOTHING]
            for step, gap in zip(steps, [NOTHING, *gaps], strict=True)
        ],
    }


def _bar(step: Step, begin: datetime, total: timedelta) -> SafeString:
    left, right = ((max(at, begin) - begin) / total * 100 for at in (step.since or step.at, step.at))
    style = f"left:min({left:.1f}%,100% - 3px);width:{max(right - left, 0):.1f}%"
    family = FAMILIES.get(step.state, Family.QUIET)
    took = in_words(step.at - step.since) if step.since else ""
    return format_html('<span class="bar" title="{}"><i class="{}" style="{}"></i></span>', took, family, style)


def _heading(step: Step) -> SafeString:
    return format_html("<strong>{}</strong> {}", step.heading, label(step.state) if step.state else "")


def _clock(step: Step) -> str:
    text = f"{step.at:%Y-%m-%d %H:%M:%S}.{step.at.microsecond // 1000:03}"
    return format_html('<time datetime="{}">{}</time>', step.at.isoformat(), text)


# Beside the steps -----------------------------------------------------------------------------------------------------


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


def _links_of_request(story: RequestStory) -> Iterator[Link]:
    yield Link("Request", request_url(story.request.pk))
    for pk in story.request.notifications.order_by("position").values_list("pk", flat=True)[:MAX_SHOWN]:
        yield Link(f"Notification {pk}", timeline_url(pk))
    if story.envelope:
        yield Link("Envelope", envelope_url(story.envelope.hash))
