"""The story of a notification or a request: all rows about it, and what they mean in words.

The line above a timeline says why a push is late or did not arrive, and the answer for the user says it in plain words,
without an id, a code or a name. Halts have rows of their own. The log of changes only adds who acted on other rows,
and why; its wording decides nothing. The sentences stand in `pages.labels`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db.models import Model, Q

from kit.display import counted, exact
from notifications.acceptance.storing import EFFECTS
from notifications.messages import AppKey, Effect, Outcome, PushLimit, app_key
from notifications.models import Attempt, Channel, Halt, Notification, NotificationRequest, Queue
from notifications.policy import Wish
from notifications.queues.breakers import BY_OPERATOR
from notifications.reports import Decided, unpack
from pushserver.console.notifications.admin import PUSH_CONTENT
from pushserver.console.notifications.channels import covering
from pushserver.console.pages import labels
from pushserver.console.pages.drain import DRAIN_ID
from pushserver.console.parts import parts
from pushserver.console.registrations.admin import ROUTE_SECRETS
from pushserver.console.toolkit.labels import FAMILIES, Family
from pushserver.console.toolkit.related import FirstLine
from pushserver.console.toolkit.times import in_words
from registrations.models import Registration, Route
from waku_bridge.models import InboundEnvelope, OutboundReply

State = Notification.State
# What one transaction or one batch does is noted at several times, which differ by less than this.
A_MOMENT = timedelta(seconds=5)
# A first attempt that begins later than this counts as a cause of delay.
SLOW = timedelta(seconds=5)
MAX_STEPS = 50


# Rows -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStory:
    """All rows about a request. Envelopes and replies are deleted sooner. ``staff`` has the actions of staff."""

    request: NotificationRequest
    envelope: InboundEnvelope | None
    replies: Sequence[OutboundReply]
    staff: Sequence[LogEntry]

    @property
    def begun_at(self) -> datetime:
        return self.envelope.received_at if self.envelope else self.request.received_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Story(RequestStory):
    """All rows about a notification. ``halts`` has those in force during its life, those that ended first."""

    notification: Notification
    route: Route | None
    attempts: Sequence[Attempt]
    halts: Sequence[Halt]
    rule_urls: Mapping[int, str]

    @property
    def present_halts(self) -> list[Halt]:
        return [halt for halt in self.halts if halt.ended_at is None]

    @property
    def arrived_at(self) -> datetime:
        """Return when the message arrived, or when the notification was created if no envelope is kept."""
        return self.envelope.received_at if self.envelope else self.notification.created_at

    @property
    def staff_beside_halts(self) -> list[LogEntry]:
        """Return the staff actions for which no halt of its own row stands."""
        acts = [act for halt in self.halts for act in ((halt.by, halt.since), (halt.ended_by, halt.ended_at))]
        of_halts = [self.entry_of(name, at) for name, at in acts if name and at]
        return [entry for entry in self.staff if entry not in of_halts]

    def entry_of(self, name: str, at: datetime) -> LogEntry | None:
        """Return the log entry of what this staff member did to an app, or to delivery as a whole, at this time."""
        near = [entry for entry in self.staff if is_about_halts(entry) and entry.user.get_username() == name]
        nearest = min(near, key=lambda entry: abs(entry.action_time - at), default=None)
        return nearest if nearest and abs(nearest.action_time - at) < A_MOMENT else None


def load_request(pk: int) -> RequestStory | None:
    """Load all rows of a request."""
    request = NotificationRequest.objects.defer("reply_address", "names").filter(pk=pk).first()
    if request is None:
        return None
    staff = staff_actions({NotificationRequest: [str(pk)]}, request.received_at, None)
    return RequestStory(request=request, envelope=_envelope_of(request), replies=_replies_to(request), staff=staff)


def load_story(pk: int) -> Story | None:
    """Load all rows of a notification, with a dozen look-ups by index."""
    rows = Notification.objects.defer(*PUSH_CONTENT, "request__reply_address").select_related("request")
    notification = rows.filter(pk=pk).first()
    if notification is None:
        return None
    route = Route.objects.defer(*ROUTE_SECRETS).filter(pk=notification.route_id or 0).first()
    attempts = list(Attempt.objects.filter(notification=notification).order_by("number"))
    # Once the recipient has unregistered, the last attempt or the queue has the app.
    goes_to = route or next(reversed(attempts), None) or Queue.objects.filter(pk=notification.queue_id).first()
    app = app_key(goes_to.token_type, goes_to.app_topic or "") if goes_to else None
    return Story(
        notification=notification,
        request=notification.request,
        route=route,
        envelope=_envelope_of(notification.request),
        attempts=attempts,
        replies=_replies_to(notification.request),
        halts=_halts(notification, goes_to.gateway, app) if goes_to and app else [],
        staff=staff_actions(_subjects(notification, app), notification.created_at, notification.finished_at),
        rule_urls={pk: url for part in parts() for pk, url in part.rule_urls(attempts).items()},
    )


def _envelope_of(request: NotificationRequest) -> InboundEnvelope | None:
    return InboundEnvelope.objects.defer("payload").filter(pk=request.source_key).first()


def _replies_to(request: NotificationRequest) -> list[OutboundReply]:
    return list(OutboundReply.objects.defer("payload").filter(envelope_hash=request.source_key).order_by("part"))


def _halts(notification: Notification, gateway: str, app: AppKey) -> list[Halt]:
    in_force = covering(gateway, app).filter(Q(ended_at=None) | Q(ended_at__gt=notification.created_at))
    until = notification.finished_at
    in_its_life = in_force.filter(since__lt=until) if until else in_force
    return list(in_its_life.order_by("ended_at", "kind", "pk")[:MAX_STEPS])


def _subjects(notification: Notification, app: AppKey | None) -> dict[type[Model], list[str]]:
    """Return the rows on which a staff action may have changed the course of a notification."""
    registrations = Registration.objects.filter(
        public_key_hash=notification.public_key_hash, installation_id=notification.installation_id
    )
    apps = Channel.objects.filter(**app._asdict()) if app else Channel.objects.none()
    return {
        Notification: [str(notification.pk)],
        NotificationRequest: [str(notification.request_id)],
        Registration: [str(pk) for pk in registrations.values_list("pk", flat=True)],
        **{type(row): [str(row.pk)] for part in parts() if (row := part.owner_of(notification))},
        Channel: [str(pk) for pk in apps.values_list("pk", flat=True)],
        Halt: [DRAIN_ID],
    }


def staff_actions(
    subjects: Mapping[type[Model], Collection[str]], since: datetime, until: datetime | None
) -> list[LogEntry]:
    """Return the staff actions on these rows between two times, found by the index over subjects."""
    condition = Q(pk=None)
    for model, ids in subjects.items():
        condition |= Q(content_type=ContentType.objects.get_for_model(model), object_id__in=ids)
    entries = LogEntry.objects.filter(condition, action_time__gte=since)
    entries = entries.filter(action_time__lte=until + A_MOMENT) if until else entries
    return list(entries.select_related("user", "content_type").order_by("pk")[:MAX_STEPS])


def is_about_halts(entry: LogEntry) -> bool:
    return entry.content_type is not None and entry.content_type.model_class() in {Channel, Halt}


# Why ------------------------------------------------------------------------------------------------------------------


def causes_of(story: Story) -> Iterator[str]:
    """Yield the causes of the delay of a notification."""
    for halt in story.halts:
        if halt.ended_at and halt.by:
            yield f"{labels.HALTED_BY[halt.kind]} by {halt.by}"
    for kind, lasted in _halted_for(story).items():
        yield f"{labels.HALTED_BY[kind]} for {in_words(lasted)}"
    if story.notification.state == State.EXPIRED and not story.attempts:
        yield "no attempt was made"
    first = next((attempt.began_at or attempt.started_at for attempt in story.attempts), None)
    if first and first - story.arrived_at > SLOW:
        yield f"its first attempt came after {in_words(first - story.arrived_at)}"
    if failed := [attempt for attempt in story.attempts if attempt.outcome not in {None, Outcome.DELIVERED}]:
        last = failed[-1]
        yield f"{counted(len(failed), 'attempt')} failed, the last with {last.code or last.outcome}"
    if any(attempt.is_probe for attempt in story.attempts):
        yield "its app was tripped or its gateway was unreachable, and it was sent as a probe"


def _halted_for(story: Story) -> dict[str, timedelta]:
    """Return, by kind, how much of the notification's life was covered by ended halts that the server began."""
    begin, end = story.notification.created_at, story.notification.finished_at
    lasted: dict[str, timedelta] = {}
    for halt in story.halts:
        if halt.ended_at and not halt.by:
            within = min(halt.ended_at, end or halt.ended_at) - max(halt.since, begin)
            lasted[halt.kind] = lasted.get(halt.kind, timedelta()) + within
    return lasted


def why_decided(decided: Decided) -> str:
    match decided.why:
        case Wish() as wish:
            return labels.WISHES[wish]
        case PushLimit() as limit:
            return f"{labels.beyond(EFFECTS[decided.verdict], limit).capitalize()}."
    return labels.VERDICTS[decided.verdict]


def shortened(notification: Notification) -> str:
    """Return why a notification went out as a wake-up without its content."""
    return f"{labels.beyond(Effect.SHORTENED, notification.shortened_by).capitalize()}."


def why_ended(story: Story) -> str:
    """Return the meaning of the last state, or the cause where a state has several."""
    state = State(story.notification.state)
    if state == State.COALESCED:
        return f"{labels.beyond(Effect.MERGED, PushLimit.WAITING).capitalize()}."
    if state == State.UNDELIVERABLE and story.attempts and story.attempts[-1].is_counted:
        return labels.FAILED_TOO_OFTEN.format(count=sum(attempt.is_counted for attempt in story.attempts))
    if state == State.WITHDRAWN and (entry := _withdrawal(story)):
        return f"{entry.user.get_username()} withdrew it. {entry.get_change_message()}"
    if state == State.WITHDRAWN and story.route is None:
        return "The recipient unregistered."
    return labels.ENDS[state]


def _withdrawal(story: Story) -> LogEntry | None:
    """Return the log entry of the staff action that withdrew a notification, or disabled its route before."""
    ends = [story.notification.finished_at]
    if story.route and story.route.disabled_reason == BY_OPERATOR:
        ends.append(story.route.disabled_at)
    at_end = (
        entry
        for entry in reversed(story.staff)
        if not is_about_halts(entry) and any(at and abs(entry.action_time - at) < A_MOMENT for at in ends)
    )
    return next(at_end, None)


# In one line ----------------------------------------------------------------------------------------------------------


def line_of(story: Story) -> FirstLine:
    """Return the state of a notification in one line, with its causes and the next step."""
    notification, causes = story.notification, ", ".join(causes_of(story))
    family = FAMILIES[notification.state]
    if not notification.finished_at:
        late = f"Not delivered yet: {causes}." if causes else "Not delivered yet."
        return FirstLine(f"{late} {next(next_steps(story))}", Family.CAUTION if story.present_halts else family)
    if notification.state == State.DELIVERED:
        after = in_words(notification.finished_at - story.arrived_at)
        shape = f"{shortened(notification)} " if notification.shortened_by else ""
        return FirstLine(f"{shape}Delivered after {after}{f': {causes}' if causes else ''}.", family)
    how = labels.NOT_DELIVERED.get(State(notification.state), "Not delivered")
    return FirstLine(f"{how}. {why_ended(story)}{f' Before: {causes}.' if causes else ''}", family)


def line_of_request(asked: NotificationRequest, number: int) -> FirstLine:
    """Return the result of a request in one line. ``number`` counts the notifications that it brought."""
    decided = unpack(asked.decided)
    stored = f"{counted(number, 'notification')} with a timeline of {'its' if number == 1 else 'their'} own."
    if not decided:
        return FirstLine(f"It brought {stored}", Family.WAITING)
    why = " ".join(dict.fromkeys(map(why_decided, decided)))
    what = f"{counted(len(decided), 'push', 'pushes')} decided at once" if number else "Nothing was sent"
    return FirstLine(f"{what}: {why}{f' It brought {stored}' if number else ''}", Family.QUIET)


# Next steps -----------------------------------------------------------------------------------------------------------


def next_steps(story: Story) -> Iterator[str]:
    """Yield the next steps of a notification, its attempts and its answer."""
    notification = story.notification
    if notification.finished_at:
        yield labels.ALL_OVER
    elif notification.state == State.IN_FLIGHT:
        yield labels.BEING_SENT.format(when=_when(notification.lease_until))
    else:
        yield from _before_next_attempt(story)
    if not notification.finished_at:
        yield labels.EXPIRES.format(when=_when(notification.expires_at))
    yield from _next_steps_of_answer(story)


def _before_next_attempt(story: Story) -> Iterator[str]:
    notification = story.notification
    for halt in story.present_halts:
        by = f"by {halt.by}, " if halt.by else ""
        yield f"{labels.HALTED[Halt.Kind(halt.kind)].format(halt=halt)} ({by}since {exact(halt.since)})."
    if story.route is None:
        yield labels.UNREGISTERED
    elif story.route.state != Route.State.ACTIVE:
        yield labels.ROUTE_DISABLED.format(reason=story.route.disabled_reason)
    if notification.next_attempt_at is None:
        yield labels.NO_ATTEMPT
    elif not story.present_halts:
        yield labels.NEXT_ATTEMPT.format(when=_when(notification.next_attempt_at))


def next_steps_of_request(story: RequestStory) -> Iterator[str]:
    if story.request.state != NotificationRequest.State.WAITING:
        yield labels.NOTHING_LEFT
    yield from _next_steps_of_answer(story)


def _next_steps_of_answer(story: RequestStory) -> Iterator[str]:
    if story.request.state == NotificationRequest.State.WAITING:
        yield labels.ANSWER_WAITS.format(when=_when(story.request.reply_due_at))
    for reply in story.replies:
        if reply.state in labels.REPLIES:
            yield labels.REPLIES[OutboundReply.State(reply.state)].format(when=_when(reply.due_at))


def _when(at: datetime | None) -> str:
    return f"at {exact(at)}" if at else "at no set time"


# The answer for the user ----------------------------------------------------------------------------------------------


def answer_for_user(story: Story) -> str:
    """Return what became of a notification in plain words, which support sends to the user."""
    notification = story.notification
    tries = sum(attempt.outcome not in {None, Outcome.DELIVERED} for attempt in story.attempts)
    begin = f"Our server was asked at {exact(story.arrived_at)} to notify you."
    if not notification.finished_at:
        why = " Sending is stopped at this moment." if story.present_halts else ""
        until = f" We keep trying until {exact(notification.expires_at)}." if notification.expires_at else ""
        return f"{begin} It has not been delivered yet.{why}{until} {labels.OPEN_STATUS}"
    after = in_words(notification.finished_at - story.arrived_at)
    state = State(notification.state)
    end = labels.WITHDRAWN_BY_US if state == State.WITHDRAWN and _withdrawal(story) else labels.ANSWERS[state]
    failed = f" Before that, {counted(tries, 'try', 'tries')} failed." if tries else ""
    return f"{begin} {end.format(after=after)}{failed} {labels.AFTERWARDS.get(state, labels.OPEN_STATUS)}"
