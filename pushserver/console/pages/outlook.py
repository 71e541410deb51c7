"""Outlook of a notification or request: the line above its timeline, and the next steps below it.

The line gives the reason why a push is late or did not arrive. The sentences stand in `pages.labels`.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from kit.display import counted, exact
from notifications.acceptance.limits import EFFECTS
from notifications.messages import Effect, Outcome, PushLimit
from notifications.models import Halt, Notification, NotificationRequest
from notifications.rules.policy import Wish
from notifications.rules.reports import Decided, unpack
from pushserver.console.pages import labels
from pushserver.console.pages.story import Story, halt_of
from pushserver.console.toolkit.labels import FAMILIES, Family
from pushserver.console.toolkit.lists.first_lines import FirstLine
from pushserver.console.toolkit.times import in_words
from registrations.models import Route
from waku_bridge.models import OutboundReply

State = Notification.State
# A first attempt that begins later than this counts as a cause of delay.
SLOW = timedelta(seconds=5)


# In one line ----------------------------------------------------------------------------------------------------------


def line_of(story: Story) -> FirstLine:
    """Return the state of a notification in one line, with its causes and the next step."""
    notification, causes = story.notification, ", ".join(_causes(story))
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


def _causes(story: Story) -> Iterator[str]:
    """Yield the causes of the delay of a notification."""
    lasting = {halt.kind for halt in story.present_halts}
    for entry in story.staff:
        if (kind := halt_of(entry)) and kind not in lasting:
            yield f"{labels.HALTED_BY[kind]} by {entry.user.get_username()}"
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
    return _why_withdrawn(story) if state == State.WITHDRAWN else labels.ENDS[state]


def _why_withdrawn(story: Story) -> str:
    for entry in reversed(story.staff):
        if entry.change_message.startswith(("Dropped", "Disabled", "Removed")):
            return f"{entry.user.get_username()} withdrew it. {entry.change_message}"
    return "The recipient unregistered." if story.route is None else labels.ENDS[State.WITHDRAWN]


# In sentences ---------------------------------------------------------------------------------------------------------


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
    yield from next_steps_of_answer(story.request, story.replies)


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


def next_steps_of_answer(request: NotificationRequest, replies: Sequence[OutboundReply]) -> Iterator[str]:
    if request.state == NotificationRequest.State.WAITING:
        yield labels.ANSWER_WAITS.format(when=_when(request.reply_due_at))
    for reply in replies:
        if reply.state in labels.REPLIES:
            yield labels.REPLIES[OutboundReply.State(reply.state)].format(when=_when(reply.due_at))


def _when(at: datetime | None) -> str:
    return f"at {exact(at)}" if at else "at no set time"
