"""The timeline of one notification: from its envelope to the answer that its sender got, and what comes next."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from kit.admin.columns import NOTHING, as_digits, hex_of, state
from kit.admin.labels import label
from kit.admin.links import Link
from kit.admin.times import exact
from kit.http.urls import host_of
from notifications import draining
from notifications.admin import notification_url, request_url, type_name
from notifications.messages import channel_key
from notifications.models import Attempt, Channel, Drain, Notification, NotificationRequest
from pushserver.console.links import links_to_recipient
from registrations.admin import route_url
from registrations.models import Route
from waku_bridge.admin import envelope_url
from waku_bridge.models import InboundEnvelope, OutboundReply

State = Notification.State
NO_SUCH_NOTIFICATION = "There is no such notification, or it is kept no longer."
ENDS = {
    State.DELIVERED: "Apple or Google took it.",
    State.DEAD_TOKEN: "Its address is dead or disabled.",
    State.UNDELIVERABLE: "Apple or Google can never take such a push.",
    State.UNCONFIRMED: "It may have arrived. Sent again, it could arrive twice.",
    State.EXPIRED: "Its time to live ran out before a try succeeded.",
    State.WITHDRAWN: "The recipient unregistered, or an operator dropped it.",
    State.COALESCED: "A later one to the same address wakes the phone for it.",
    State.SUPPRESSED: "The recipient asked not to be notified of this. The sender does not learn of it.",
    State.DUPLICATE: "The same message was notified about within a day.",
    State.REFUSED: "Wrong token, nobody registered, or too much was waiting.",
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
    drain: Drain | None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the timeline. ``state`` is its outcome."""

    at: datetime
    what: str
    detail: str = ""
    state: str = ""


@require_safe
def show_timeline(request: HttpRequest, object_id: str) -> HttpResponse:
    """Show the timeline of a notification."""
    if not request.user.has_perm("notifications.view_notification"):
        raise PermissionDenied
    story = load_story(int(object_id)) if object_id.isdecimal() and len(object_id) < 19 else None
    if story is None:
        messages.warning(request, NO_SUCH_NOTIFICATION)
        return HttpResponseRedirect(reverse("find"))
    steps = list(steps_of(story))
    context = {
        **admin.site.each_context(request),
        "title": f"Timeline of notification {story.notification.pk}",
        "facts": _facts(story),
        "links": list(_links(story)),
        "table": _table(steps),
        "total": in_words(steps[-1].at - steps[0].at),
        "next": list(what_comes_next(story)),
    }
    return TemplateResponse(request, "console/timeline.html", context)


def load_story(notification_id: int) -> Story | None:
    """Load all rows of a notification, with seven look-ups by index however long its story is."""
    rows = Notification.objects.defer("chat_id", "message", "dedup_key", "collapse_id", "request__reply_address")
    notification = rows.select_related("request").filter(pk=notification_id).first()
    if notification is None:
        return None
    request = notification.request
    routes = Route.objects.defer("address_encrypted", "address_digest")
    route = routes.filter(pk=notification.route_id or 0).first()
    channel = None
    if route is not None:
        key = channel_key(route.token_type, route.apn_topic)
        channel = Channel.objects.filter(**key._asdict()).first()
    return Story(
        notification=notification,
        request=request,
        route=route,
        envelope=InboundEnvelope.objects.defer("payload").filter(pk=request.source_key).first(),
        attempts=list(Attempt.objects.filter(notification=notification).order_by("number")),
        replies=list(OutboundReply.objects.defer("payload").filter(envelope_hash=request.source_key).order_by("part")),
        channel=channel,
        drain=draining.current(),
    )


def steps_of(story: Story) -> Iterator[Step]:
    """Yield the steps by time. Steps of the same moment stay in the order of their causes."""
    yield from sorted([*_arrival(story), *_attempts(story), *_end(story), *_answer(story)], key=lambda step: step.at)


def _arrival(story: Story) -> Iterator[Step]:
    envelope = story.envelope
    if envelope:
        yield Step(envelope.received_at, "Envelope received", f"from {host_of(envelope.source)}, path {envelope.path}")
    if envelope and envelope.processed_at:
        yield Step(
            envelope.processed_at, "Envelope processed", " ".join(filter(None, [envelope.state, envelope.reason]))
        )
    yield Step(story.request.received_at, "Request accepted", f"through {story.request.front_door}")
    yield Step(story.notification.created_at, "Notification created", _kind(story.notification))


def _kind(notification: Notification) -> str:
    """Return the type of a notification, or the grade where the front door knows grades instead."""
    return f"grade {notification.grade}" if notification.grade else type_name(notification.type)


def _attempts(story: Story) -> Iterator[Step]:
    for attempt in story.attempts:
        yield Step(attempt.started_at, f"Attempt {attempt.number} started", f"at {attempt.gateway}")
        if attempt.outcome is None:
            continue
        took = timedelta(milliseconds=attempt.latency_ms or 0)
        late = f"; the gateway reported later: {attempt.late_code}" if attempt.late_code else ""
        known = f"after {in_words(took)}" if attempt.latency_ms is not None else "nobody knows when"
        code = f" ({attempt.code})" if attempt.code else ""
        yield Step(attempt.started_at + took, f"Attempt {attempt.number}:", f"{known}{code}{late}", attempt.outcome)
        if attempt.repeated_at:
            yield Step(attempt.repeated_at, f"It failed just so {attempt.repeat_count} times more", "the last time")


def _end(story: Story) -> Iterator[Step]:
    notification = story.notification
    if notification.finished_at:
        yield Step(notification.finished_at, "Finished:", ENDS[State(notification.state)], notification.state)


def _answer(story: Story) -> Iterator[Step]:
    told = f"the sender is told {story.notification.report}" if story.notification.report else ""
    if story.notification.grade:
        yield Step(story.request.received_at, "Answered", "the user's server is told that it is stored")
    elif story.request.answered_at:
        yield Step(story.request.answered_at, "Reply recorded", told)
    for reply in story.replies:
        if reply.published_at:
            tries = "" if reply.attempt_count == 1 else f", with try {reply.attempt_count}"
            yield Step(reply.published_at, "Reply published", f"by {host_of(reply.node)}{tries}")
        if reply.confirmed_at:
            yield Step(reply.confirmed_at, "Reply confirmed", "a store has it")


def _table(steps: Sequence[Step]) -> dict[str, object]:
    """Return the table of the steps, each with the time since the one before."""
    gaps = [timedelta(0), *(later.at - earlier.at for earlier, later in pairwise(steps))]
    return {
        "headers": ["time (UTC)", "since the last", "what", "detail"],
        "rows": [
            [_clock(step), f"+{in_words(gap)}", _said(step), step.detail or NOTHING]
            for step, gap in zip(steps, gaps, strict=True)
        ],
    }


def _said(step: Step) -> SafeString:
    return format_html("<strong>{}</strong> {}", step.what, label(step.state) if step.state else "")


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
    if story.drain:
        yield "Delivery is stopped: it waits until somebody starts it again."
    if story.channel and story.channel.state != Channel.State.RUNNING:
        yield f"Its channel {story.channel} is {story.channel.state}: {story.channel.reason}"
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
        return [*facts, ("grade", notification.grade), ("device", as_digits(notification.installation_id))]
    return [
        *facts,
        ("installation", as_digits(notification.installation_id)),
        ("Status message", as_digits(hex_of(story.request.message_id))),
        ("metadata message", as_digits(hex_of(story.request.request_key))),
        ("envelope", as_digits(hex_of(story.request.source_key))),
    ]


def _links(story: Story) -> Iterator[Link]:
    yield from links_to_recipient(story.notification)
    yield Link("Notification", notification_url(story.notification.pk))
    yield Link("Request", request_url(story.request.pk))
    if story.route:
        yield Link("Route", route_url(story.route.pk))
    if story.envelope:
        yield Link("Envelope", envelope_url(story.envelope.hash))
