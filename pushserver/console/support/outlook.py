"""The one line above a timeline, which says why a push is late or did not arrive.

Below the timeline the same module says in sentences what comes next.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from kit.admin.labels import FAMILIES, Family
from kit.admin.lists.first_lines import FirstLine
from kit.admin.times import exact, in_words
from kit.figures import counted
from notifications.models import Attempt, Halt, Notification, NotificationRequest
from notifications.rules.reports import Decided, unpack
from pushserver.console.support.labels import ENDS, VERDICTS, WISHES
from pushserver.console.support.story import Story, halt_of
from registrations.models import Route
from waku_bridge.models import OutboundReply

State = Notification.State
# A first attempt later than this is a reason to be late.
SLOW = timedelta(seconds=5)
HALTED = {
    Halt.Kind.DRAINED: "Delivery is stopped: it waits until somebody starts it again",
    Halt.Kind.UNREACHABLE: "Its gateway {halt.gateway} cannot be reached: it waits until a probe reaches it",
    Halt.Kind.PAUSED: "Its app is paused: {halt.reason}. It waits until somebody resumes the app",
    Halt.Kind.TRIPPED: "Its app is tripped: {halt.reason}. It waits until a probe is delivered",
}
# What staff did, as a cause of delay.
HALTED_BY = {"drained": "delivery was stopped", "paused": "its app was paused", "tripped": "its app was tripped"}
NOT_DELIVERED = {
    State.UNCONFIRMED: "Perhaps delivered",
    State.WITHDRAWN: "Not sent",
    State.COALESCED: "Not sent by itself",
}
# A confirmed reply needs no words.
REPLIES = {
    OutboundReply.State.PENDING: "The reply waits to be published; the next try is due {when}.",
    OutboundReply.State.PUBLISHED: "A node took the reply; whether a store has it is looked up {when}.",
    OutboundReply.State.UNCONFIRMED: "No store was found to have the reply: the sender may not have got it.",
    OutboundReply.State.ABANDONED: "No node took the reply while anybody could wait for it: the sender got none.",
}


# In one line ----------------------------------------------------------------------------------------------------------


def line_of(story: Story) -> FirstLine:
    """Return in one line how a notification is, why, and what comes next."""
    notification, causes = story.notification, ", ".join(_causes(story))
    family = FAMILIES[notification.state]
    if not notification.finished_at:
        late = f"Not delivered yet: {causes}." if causes else "Not delivered yet."
        return FirstLine(f"{late} {next(what_comes_next(story))}", Family.CAUTION if story.halts else family)
    if notification.state == State.DELIVERED:
        after = in_words(notification.finished_at - notification.created_at)
        return FirstLine(f"Delivered after {after}{f': {causes}' if causes else ''}.", family)
    how = NOT_DELIVERED.get(State(notification.state), "Not delivered")
    return FirstLine(f"{how}. {why_ended(story)}{f' Before: {causes}.' if causes else ''}", family)


def line_of_request(asked: NotificationRequest, number: int) -> FirstLine:
    """Return in one line what became of a request that brought this number of notifications."""
    decided = unpack(asked.decided)
    stored = f"{counted(number, 'notification')} with a timeline of {'its' if number == 1 else 'their'} own."
    if not decided:
        return FirstLine(f"It brought {stored}", Family.WAITING)
    why = " ".join(dict.fromkeys(map(why_decided, decided)))
    what = f"{counted(len(decided), 'push', 'pushes')} decided at once" if number else "Nothing was sent"
    return FirstLine(f"{what}: {why}{f' It brought {stored}' if number else ''}", Family.QUIET)


def _causes(story: Story) -> Iterator[str]:
    """Yield what kept a notification from being delivered at once."""
    lasting = {halt.kind for halt in story.halts}
    for entry in story.staff:
        if (kind := halt_of(entry)) and kind not in lasting:
            yield f"{HALTED_BY[kind]} by {entry.user.get_username()}"
    if story.notification.state == State.EXPIRED and not story.attempts:
        yield "no attempt was made"
    first = next((attempt.started_at for attempt in story.attempts), None)
    if first and first - story.notification.created_at > SLOW:
        yield f"its first attempt came after {in_words(first - story.notification.created_at)}"
    if failed := [attempt for attempt in story.attempts if attempt.outcome not in {None, Attempt.Outcome.DELIVERED}]:
        last = failed[-1]
        yield f"{counted(len(failed), 'attempt')} failed, the last with {last.code or last.outcome}"
    if any(attempt.is_probe for attempt in story.attempts):
        yield "its app was tripped or its gateway was away, and it was sent as a probe"


def why_decided(decided: Decided) -> str:
    return WISHES[decided.wish] if decided.wish else VERDICTS[decided.verdict]


def why_ended(story: Story) -> str:
    """Return what the last state means, and where it is known who or what brought it about."""
    meaning = ENDS[State(story.notification.state)]
    return f"{meaning} {_why_withdrawn(story)}" if story.notification.state == State.WITHDRAWN else meaning


def _why_withdrawn(story: Story) -> str:
    for entry in reversed(story.staff):
        if entry.change_message.startswith(("Dropped", "Disabled", "Removed")):
            return f"{entry.user.get_username()} did it: {entry.change_message}"
    return "The recipient unregistered." if story.route is None else "Its recipient was gone or disabled."


# In sentences ---------------------------------------------------------------------------------------------------------


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
    yield from what_comes_of_answer(story.request, story.replies)


def _before_next_attempt(story: Story) -> Iterator[str]:
    notification = story.notification
    for halt in story.halts:
        by = f"by {halt.by}, " if halt.by else ""
        yield f"{HALTED[Halt.Kind(halt.kind)].format(halt=halt)} ({by}since {exact(halt.since)})."
    if story.route is None:
        yield "Its recipient unregistered: the next worker withdraws it."
    elif story.route.state != Route.State.ACTIVE:
        yield f"Its route is disabled ({story.route.disabled_reason}): the next worker closes it."
    if notification.due_at is None:
        yield "No attempt is due before it expires."
    elif not story.halts:
        yield f"The next attempt is due {_when(notification.due_at)}."


def what_comes_of_answer(request: NotificationRequest, replies: Sequence[OutboundReply]) -> Iterator[str]:
    if request.state == NotificationRequest.State.WAITING:
        yield f"The sender is answered after the first attempt of each notification, or {_when(request.reply_due_at)}."
    for reply in replies:
        if reply.state in REPLIES:
            yield REPLIES[OutboundReply.State(reply.state)].format(when=_when(reply.next_attempt_at))


def _when(at: datetime | None) -> str:
    return f"at {exact(at)}" if at else "at no set time"
