"""Erasure of a user who asks for it: everything that is stored about a key hash, at once and finally.

Unregistering keeps key hash and version, so that an older registration that is replayed stays refused. After an erasure
the next message of that client counts as new, also an old one that somebody replays. Three things stay, and none of
them identifies the user. The history of installations has random pseudonyms, which only registrations connect to a
user. The hashes of envelopes prevent that a copy from another node is taken for new. Other users keep the rows that
they stored for themselves.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

import structlog
from django.db import transaction
from django.db.models import QuerySet

from kit.display import counted
from notifications.models import (
    BeyondLimit,
    DecidedAtOnce,
    EndedAttempt,
    Notification,
    NotificationRequest,
    OpenNotification,
    OpenRequest,
)
from pushserver.console.notifications.removal import forget_keys, remove_notifications, remove_requests
from registrations.models import Grant, Registration, RegistrationEvent, Route, TopicKey
from waku_bridge.codec import wire
from waku_bridge.inbox import inbox
from waku_bridge.models import DeadLetter, EndedEnvelope, EndedReply, OpenEnvelope, OpenReply
from waku_bridge.query_topics import stop_listening_to

log = structlog.get_logger(__name__)
FORGOTTEN = "forgotten"


@dataclass(frozen=True, slots=True)
class Traces:
    """The number of rows about a key hash, by kind."""

    registrations: int
    grants: int
    notifications: int
    query_topics: int

    def __bool__(self) -> bool:
        return any((self.registrations, self.grants, self.notifications, self.query_topics))

    def __str__(self) -> str:
        found = {"registration": self.registrations, "grant": self.grants}
        found |= {"notification": self.notifications, "query topic": self.query_topics}
        numbers = ", ".join(counted(number, noun) for noun, number in found.items())
        return f"{numbers}, and the routes and attempts of these"


def find_traces(key_hash: bytes) -> Traces:
    """Return how many rows of each kind are stored about a key hash."""
    return Traces(
        Registration.objects.filter(public_key_hash=key_hash).count(),
        Grant.objects.filter(registration__public_key_hash=key_hash).count(),
        Notification.objects.filter(public_key_hash=key_hash).count(),
        TopicKey.objects.filter(name=wire.query_name(key_hash)).count(),
    )


@transaction.atomic
def forget(key_hash: bytes, *, now: datetime) -> Traces:
    """Remove everything about a key hash, and return how many rows there were.

    A push that a worker is sending at this moment may still arrive.
    """
    name = wire.query_name(key_hash)
    asked = _lock_queries(name)
    lock_all_about(key_hash)
    found = find_traces(key_hash)
    _remove_registrations(Registration.objects.filter(public_key_hash=key_hash), now=now)
    _remove_notifications(Notification.objects.filter(public_key_hash=key_hash))
    for rows in (DecidedAtOnce, BeyondLimit):
        rows.objects.filter(recipient=key_hash[: DecidedAtOnce.RECIPIENT_BYTES]).delete()
    _remove_query_topic(name, asked, now=now)
    log.info("user_forgotten", registrations=found.registrations, notifications=found.notifications)
    return found


def _lock_queries(name: str) -> list[bytes]:
    """Lock the envelopes with queries about this user, and return their hashes.

    The tables are searched only once: they have no index by topic, because every message would pay for that index.
    """
    if _is_shared(name):
        return []
    own = {"content_topic": wire.content_topic(name)}
    on_topic = [table.objects.filter(**own).order_by("hash") for table in (OpenEnvelope, EndedEnvelope)]
    return [bytes(row.hash) for rows in on_topic for row in rows.select_for_update().only("hash")]


def _is_shared(name: str) -> bool:
    """Return whether the query topic of another user has the same four bytes."""
    return TopicKey.objects.filter(topic=int.from_bytes(wire.topic(name))).exclude(name=name).exists()


def _remove_registrations(registrations: QuerySet[Registration], *, now: datetime) -> None:
    _end_history(registrations, now=now)
    route_ids = list(registrations.filter(route__isnull=False).values_list("route", flat=True))
    registrations.delete()
    Route.objects.filter(pk__in=route_ids).delete()


def _end_history(registrations: QuerySet[Registration], *, now: datetime) -> None:
    """Write a last event for each pseudonym, because reports take its last event to count active installations."""
    active = registrations.filter(state=Registration.State.ACTIVE, route__isnull=False)
    RegistrationEvent.objects.bulk_create(
        RegistrationEvent(
            kind=RegistrationEvent.Kind.UNREGISTERED,
            pseudonym=pseudonym,
            token_type=token_type,
            app_topic=app_topic,
            bridge=bridge,
            at=now,
        )
        for pseudonym, token_type, app_topic, bridge in active.values_list(
            "pseudonym", "route__token_type", "route__app_topic", "route__bridge"
        )
        if pseudonym
    )


def _remove_notifications(own: QuerySet[Notification]) -> None:
    """Remove the notifications, the requests that are about nobody else, and the replies to these requests."""
    ids = dict(own.values_list("pk", "request"))
    request_ids = set(ids.values())
    remove_notifications(ids.keys())
    about_others = Notification.objects.filter(request__in=request_ids).values_list("request", flat=True)
    own_ids = request_ids - set(about_others)
    requests = NotificationRequest.objects.filter(pk__in=own_ids)
    envelope_hashes = [bytes(envelope_hash) for envelope_hash in requests.values_list("source_key", flat=True)]
    forget_keys((bridge, bytes(key)) for bridge, key in requests.values_list("bridge", "request_key"))
    remove_requests(own_ids)
    _remove_replies(envelope_hashes)
    EndedEnvelope.objects.filter(hash__in=envelope_hashes).update(message_id=None)


def _remove_replies(envelope_hashes: Collection[bytes]) -> None:
    """Remove the open replies, which waits for workers that end one of them, and then those in the history."""
    for replies in (OpenReply, EndedReply):
        replies.objects.filter(envelope_hash__in=envelope_hashes).delete()


def _remove_query_topic(name: str, asked: Collection[bytes], *, now: datetime) -> None:
    """Remove the topic, and the contents of the envelopes ``asked`` with queries about this user. Their rows stay."""
    stop_listening_to(name)
    if not _is_shared(name):
        DeadLetter.objects.filter(content_topic=wire.content_topic(name)).delete()
    _remove_replies(asked)
    inbox.drop(asked, FORGOTTEN, now=now)
    envelopes = EndedEnvelope.objects.filter(hash__in=asked)
    envelopes.filter(state=EndedEnvelope.State.FAILED).update(state=EndedEnvelope.State.DROPPED, reason=FORGOTTEN)
    envelopes.update(content_topic="", payload=None, message_id=None)


def lock_all_about(key_hash: bytes) -> None:
    """Lock all rows about a key hash until the end of the caller's transaction, in the order of all other code.

    So no transaction adds to the rows that are being removed, and no two wait for each other. Registrations come before
    routes, as in registering. Attempts come before routes, and these before notifications, as in recording the
    gateway's answers. Requests come before notifications, as in answering. Envelopes come before all of these, as in
    processing: code that removes envelopes locks them first.
    """
    own = Notification.objects.filter(public_key_hash=key_hash)
    for rows in (
        Registration.objects.filter(public_key_hash=key_hash),
        EndedAttempt.objects.filter(notification__public_key_hash=key_hash),
        Route.objects.filter(registration__public_key_hash=key_hash),
        OpenRequest.objects.filter(pk__in=own.values("request")),
        OpenNotification.objects.filter(public_key_hash=key_hash),
    ):
        list(rows.order_by("pk").select_for_update(of=("self",)).values_list("pk"))
