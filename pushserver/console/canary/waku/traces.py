"""Traces: the canary's rows in the tables of real traffic. This module marks, reads and removes them.

They are found also after a process died: by the key hash of the canary's identity, which is always the same, and by the
hashes of its messages, which are stored before the messages are published.
"""

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import QuerySet

from notifications.models import Attempt, NotificationRequest
from pushserver.console.canary.push import find_push
from pushserver.console.canary.waku.diagnosis import Facts
from pushserver.console.notifications.removal import forget_keys, remove_requests
from pushserver.console.waku.erasure import lock_all_about
from pushserver.console.waku.models import CanaryRun
from registrations.models import Registration, RegistrationEvent, Route, TopicKey
from waku_bridge.codec import wire
from waku_bridge.messages import BRIDGE
from waku_bridge.models import (
    CanaryEnvelope,
    EndedEnvelope,
    EndedReply,
    EnvelopeHash,
    InboundEnvelope,
    OpenEnvelope,
    OpenReply,
    OutboundReply,
)
from waku_bridge.query_topics import canary_identities, canary_identity

# Messages stay marked for this long, because a copy may come late from another node or from its relay cache.
MARKED_FOR = timedelta(hours=1)


def mark(envelope_hash: bytes, *, now: datetime) -> None:
    """Store that this message is the canary's, before it is published."""
    CanaryEnvelope.objects.bulk_create([CanaryEnvelope(hash=envelope_hash, marked_at=now)], ignore_conflicts=True)


def note_pseudonym(run: CanaryRun) -> None:
    """Keep the pseudonym of the registration's events with the run, because unregistering removes it."""
    rows = Registration.objects.filter(public_key_hash=canary_identity().key_hash, pseudonym__isnull=False)
    run.pseudonym = rows.values_list("pseudonym", flat=True).first()
    run.save(update_fields=["pseudonym"])


def find(envelope_hash: bytes) -> Facts:
    """Return the facts about the question in this envelope."""
    envelope = InboundEnvelope.objects.filter(hash=envelope_hash).values_list("state", "reason").first()
    reply = OutboundReply.objects.filter(envelope_hash=envelope_hash).values_list("state", flat=True).first()
    state, reason = envelope or ("", "")
    return Facts(state, reason, reply or "", find_push(attempts()))


def attempts() -> QuerySet[Attempt]:
    """Return the attempts to push to the canary."""
    return Attempt.objects.filter(notification__public_key_hash=canary_identity().key_hash)


@transaction.atomic
def remove_traces(*, now: datetime) -> None:
    """Remove all traces of all runs. While a run is under way, only that run may call it.

    It first waits for workers that process one of the canary's envelopes: see `locks`.
    """
    marked = list(CanaryEnvelope.objects.values_list("hash", flat=True))
    OpenEnvelope.objects.filter(hash__in=marked).delete()
    envelopes = EndedEnvelope.objects.filter(hash__in=marked)
    asked = list(envelopes.filter(message_id__isnull=False).values_list("message_id", flat=True))
    envelopes.delete()
    EnvelopeHash.objects.filter(hash__in=marked).delete()
    for replies in (OpenReply, EndedReply):
        replies.objects.filter(envelope_hash__in=marked).delete()
    for key_hash in sorted({identity.key_hash for identity in canary_identities()}):
        lock_all_about(key_hash)
        _remove_registrations(key_hash)
        _remove_requests(NotificationRequest.objects.filter(notifications__public_key_hash=key_hash))
    # A request that was refused has no notification.
    _remove_requests(NotificationRequest.objects.filter(request_key__in=asked))
    forget_keys((BRIDGE, bytes(request_key)) for request_key in asked if request_key)
    CanaryEnvelope.objects.filter(marked_at__lt=now - MARKED_FOR).delete()


def _remove_requests(requests: QuerySet[NotificationRequest]) -> None:
    remove_requests(set(requests.values_list("pk", flat=True)))


def _remove_registrations(key_hash: bytes) -> None:
    """Remove the registrations with their routes and grants, and the events with their pseudonyms."""
    registrations = Registration.objects.filter(public_key_hash=key_hash)
    rows = list(registrations.values_list("route", "pseudonym"))
    runs = CanaryRun.objects.filter(pseudonym__isnull=False)
    own_pseudonyms = {pseudonym for _, pseudonym in rows} | set(runs.values_list("pseudonym", flat=True))
    pseudonyms = [pseudonym for pseudonym in own_pseudonyms if pseudonym]
    registrations.delete()
    Route.objects.filter(pk__in=[route for route, _ in rows if route]).delete()
    RegistrationEvent.objects.filter(pseudonym__in=pseudonyms).delete()
    runs.update(pseudonym=None)
    # Bridges get no notice: the topic is back within a minute, and each time they would backfill it as a new one.
    TopicKey.objects.filter(name=wire.query_name(key_hash)).delete()
