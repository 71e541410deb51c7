"""Story of one notification: all rows that its timeline needs, with its halts and the staff actions on it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db.models import Model, Q

from notifications.messages import ChannelKey, channel_key
from notifications.models import Attempt, Channel, Halt, Notification, NotificationRequest, Queue
from pushserver.console.notifications.admin import PUSH_CONTENT
from pushserver.console.notifications.halted import covering
from pushserver.console.pages.drain import DRAIN_ID
from pushserver.console.pages.labels import STARTED, STOPPED
from pushserver.console.parts import parts
from pushserver.console.registrations.admin import ROUTE_SECRETS
from pushserver.console.toolkit.changes import changes_of
from registrations.models import Registration, Route
from waku_bridge.models import InboundEnvelope, OutboundReply

# Disabling a route ends its waiting notifications in the same transaction, and is logged a moment later.
A_MOMENT = timedelta(seconds=5)
MAX_STEPS = 50
# First words of the log entries by which staff begin a halt, with its kind, and of those by which they end one.
HALT_BEGINS = {STOPPED: "drained", "Paused.": "paused", "Tripped.": "tripped"}
HALT_ENDS = (STARTED, "Resumed.", "Closed the breaker.")


@dataclass(frozen=True, slots=True)
class Story:
    """All rows about one notification. Envelopes and replies are deleted sooner than notifications.

    ``staff`` has the staff actions during its life. The beginnings of halts that covered its creation come first.
    ``halts`` has those in force in that time, those that ended first.
    """

    notification: Notification
    request: NotificationRequest
    route: Route | None
    envelope: InboundEnvelope | None
    attempts: Sequence[Attempt]
    replies: Sequence[OutboundReply]
    halts: Sequence[Halt]
    staff: Sequence[LogEntry]
    rule_urls: Mapping[int, str]

    @property
    def present_halts(self) -> list[Halt]:
        """Return the halts that are in force now."""
        return [halt for halt in self.halts if halt.ended_at is None]

    @property
    def arrived_at(self) -> datetime:
        """Return when the message arrived, or when the notification was created if no envelope is kept."""
        return self.envelope.received_at if self.envelope else self.notification.created_at


def load_story(notification_id: int) -> Story | None:
    """Load all rows of a notification, with a dozen look-ups by index."""
    rows = Notification.objects.defer(*PUSH_CONTENT, "request__reply_address")
    notification = rows.select_related("request").filter(pk=notification_id).first()
    if notification is None:
        return None
    route = Route.objects.defer(*ROUTE_SECRETS).filter(pk=notification.route_id or 0).first()
    attempts = list(Attempt.objects.filter(notification=notification).order_by("number"))
    target = _target_of(notification, route, attempts)
    return Story(
        notification=notification,
        request=notification.request,
        route=route,
        envelope=envelope_of(notification.request),
        attempts=attempts,
        replies=replies_to(notification.request),
        halts=_halts(notification, target) if target else [],
        staff=_staff(notification, _channel_of(target)),
        rule_urls={pk: url for part in parts() for pk, url in part.rule_urls(attempts).items()},
    )


class Target(NamedTuple):
    """The gateway and the app that the pushes of a notification go to."""

    gateway: str
    app: ChannelKey


def _target_of(notification: Notification, route: Route | None, attempts: Sequence[Attempt]) -> Target | None:
    """Return the target by the route or, once the recipient has unregistered, by the last attempt or the queue."""
    row = route or next(reversed(attempts), None) or Queue.objects.filter(pk=notification.queue_id).first()
    return Target(row.gateway, channel_key(row.token_type, row.app_topic or "")) if row else None


def _halts(notification: Notification, target: Target) -> list[Halt]:
    in_force = covering(*target).filter(Q(ended_at=None) | Q(ended_at__gt=notification.created_at))
    until = notification.finished_at
    in_its_life = in_force.filter(since__lt=until) if until else in_force
    return list(in_its_life.order_by("ended_at", "kind", "pk")[:MAX_STEPS])


def envelope_of(request: NotificationRequest) -> InboundEnvelope | None:
    return InboundEnvelope.objects.defer("payload").filter(pk=request.source_key).first()


def replies_to(request: NotificationRequest) -> list[OutboundReply]:
    return list(OutboundReply.objects.defer("payload").filter(envelope_hash=request.source_key).order_by("part"))


def _channel_of(target: Target | None) -> Channel | None:
    return Channel.objects.filter(**target.app._asdict()).first() if target else None


def _staff(notification: Notification, channel: Channel | None) -> list[LogEntry]:
    """Return the beginnings of halts that covered the creation of a notification, then staff actions in its life."""
    during = staff_actions(_subjects(notification, channel), notification.created_at, notification.finished_at)
    return [*_begun_before(notification.created_at, channel), *during]


def _subjects(notification: Notification, channel: Channel | None) -> dict[type[Model], list[str]]:
    """Return the rows on which a staff action may have changed the course of a notification."""
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
    """Return the staff actions on these rows between two times, found by the index over subjects."""
    condition = Q(pk=None)
    for model, ids in subjects.items():
        condition |= Q(content_type=ContentType.objects.get_for_model(model), object_id__in=ids)
    entries = LogEntry.objects.filter(condition, action_time__gte=since)
    entries = entries.filter(action_time__lte=until + A_MOMENT) if until else entries
    return list(entries.select_related("user", "content_type").order_by("pk")[:MAX_STEPS])


def _begun_before(at: datetime, channel: Channel | None) -> Iterator[LogEntry]:
    """Yield the log entries by which staff began the drain and the pause that were in force at a time."""
    yield from _lasting(Halt, DRAIN_ID, STOPPED, STARTED, at)
    if channel:
        yield from _lasting(Channel, str(channel.pk), "Paused.", "Resumed.", at)


def _lasting(model: type[Model], object_id: str, begin: str, end: str, at: datetime) -> Iterator[LogEntry]:
    words = Q(change_message__startswith=begin) | Q(change_message__startswith=end)
    newest = changes_of(model, [object_id]).filter(words, action_time__lt=at).select_related("content_type").first()
    if newest and newest.change_message.startswith(begin):
        yield newest


def halt_of(entry: LogEntry) -> str:
    """Return the kind of the halt that staff began by this log entry, or an empty text for any other entry."""
    return next((kind for begin, kind in HALT_BEGINS.items() if entry.change_message.startswith(begin)), "")
