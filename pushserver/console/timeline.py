"""The timeline of one notification: from the envelope it came in to the answer its sender got, and what comes next."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from notifications import draining
from notifications.admin import notification_url, request_url, type_name
from notifications.messages import channel_key
from notifications.models import Attempt, Channel, Drain, Notification, NotificationRequest
from pushserver.console.links import user_url
from registrations.admin import route_url
from registrations.console.columns import NOTHING, as_digits, hex_of, host_of, state
from registrations.console.labels import label
from registrations.console.links import Link
from registrations.console.times import exact
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
    State.SUPPRESSED: "The recipient asked not to be notified of this. The sender does not learn of it.",
    State.DUPLICATE: "The same message was notified about within a day.",
    State.REFUSED: "Wrong token, nobody registered, or too much was waiting.",
}

# A confirmed one needs no words.
REPLIES = {
    OutboundReply.State.PENDING: "The reply waits to be published; the next try is due {when}.",
    OutboundReply.State.PUBLISHED: "A node took the reply; whether a store has it is looked up {when}.",
    OutboundReply.State.UNCONFIRMED: "No store was found to have the reply: the sender may not have got it.",
    OutboundReply.State.ABANDONED: "No node took the reply while anybody could wait for it: the sender got none.",
}


@dataclass(frozen=True, slots=True)
class Story:
    """All that is kept of it. Envelopes and replies are forgotten sooner than notifications."""

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
    """``state`` is what came of it."""

    at: datetime
    what: str
    detail: str = ""
    state: str = ""


@require_safe
def show_timeline(request: HttpRequest, object_id: str) -> HttpResponse:
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
    """Seven look-ups by index, however long the story is."""
    rows = Notification.objects.defer("chat_id", "message", "dedup_key", "request__reply_to")
    notification = rows.select_related("request").filter(pk=notification_id).first()
    if notification is None:
        return None
    request = notification.request
    routes = Route.objects.defer("device_token_encrypted", "device_token_digest")
    route = routes.filter(pk=notification.route_id or 0).first()
    return Story(
        notification=notification,
        request=request,
        route=route,
        envelope=InboundEnvelope.objects.defer("payload").filter(pk=request.envelope_hash).first(),
        attempts=list(Attempt.objects.filter(notification=notification).order_by("number")),
        replies=list(
            OutboundReply.objects.defer("payload").filter(envelope_hash=request.envelope_hash).order_by("part")
        ),
        channel=Channel.objects.filter(_channel_of(route)).first() if route else None,
        drain=draining.current(),
    )


def _channel_of(route: Route) -> Q:
    return Q(**channel_key(route.token_type, route.apn_topic)._asdict())


def steps_of(story: Story) -> Iterator[Step]:
    """By time. What happened at the same moment stays in the order of its cause."""
    yield from sorted([*_arrival(story), *_attempts(story), *_end(story), *_answer(story)], key=lambda step: step.at)


def _arrival(story: Story) -> Iterator[Step]:
    envelope = story.envelope
    if envelope:
        yield Step(envelope.received_at, "Envelope received", f"from {host_of(envelope.source)}, path {envelope.path}")
    if envelope and envelope.processed_at:
        yield Step(
            envelope.processed_at, "Envelope processed", " ".join(filter(None, [envelope.state, envelope.reason]))
        )
    yield Step(story.request.received_at, "Request accepted")
    yield Step(story.notification.created_at, "Notification created", type_name(story.notification.type))


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


def _end(story: Story) -> Iterator[Step]:
    notification = story.notification
    if notification.finished_at:
        yield Step(notification.finished_at, "Finished:", ENDS[State(notification.state)], notification.state)


def _answer(story: Story) -> Iterator[Step]:
    told = f"the sender is told {story.notification.report}" if story.notification.report else ""
    if story.request.answered_at:
        yield Step(story.request.answered_at, "Reply recorded", told)
    for reply in story.replies:
        if reply.published_at:
            tries = "" if reply.attempt_count == 1 else f", with try {reply.attempt_count}"
            yield Step(reply.published_at, "Reply published", f"by {host_of(reply.node)}{tries}")
        if reply.confirmed_at:
            yield Step(reply.confirmed_at, "Reply confirmed", "a store has it")


def _table(steps: Sequence[Step]) -> dict[str, object]:
    """Each step with how long it took since the one before."""
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
    """Two digits more than anybody needs, and no more."""
    seconds = span.total_seconds()
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def what_comes_next(story: Story) -> Iterator[str]:
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
    return [
        ("state", state("state")(notification)),
        ("told the sender", state("report")(notification)),
        ("attempts", notification.attempt_count or "none"),
        ("installation", as_digits(notification.installation_id)),
        ("Status message", as_digits(hex_of(story.request.message_id))),
        ("metadata message", as_digits(hex_of(story.request.amm_message_id))),
        ("envelope", as_digits(hex_of(story.request.envelope_hash))),
    ]


def _links(story: Story) -> Iterator[Link]:
    yield Link("User", user_url(hex_of(story.notification.public_key_hash)))
    yield Link("Notification", notification_url(story.notification.pk))
    yield Link("Request", request_url(story.request.pk))
    if story.route:
        yield Link("Route", route_url(story.route.pk))
    if story.envelope:
        yield Link("Envelope", envelope_url(story.envelope.hash))
