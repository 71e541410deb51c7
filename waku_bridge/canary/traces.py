"""What the canary leaves in the tables of real traffic: marking it, looking at it, removing it.

Everything of it is found again whoever dies in between: by the key hash of the canary's own identity, which is always
the same, and by the hashes of its messages, which are noted before they are said.
"""

from datetime import datetime, timedelta

from django.db import transaction

from notifications.models import Attempt, NotificationRequest
from registrations.models import Registration, RegistrationEvent, Route, TopicKey
from waku_bridge.canary.diagnosis import Facts
from waku_bridge.codec import topics
from waku_bridge.identity import canary_identity
from waku_bridge.locks import lock_all_about
from waku_bridge.models import CanaryEnvelope, CanaryRun, InboundEnvelope, OutboundReply

# A copy may come late from another node, or from the ring of one that was not read for a while.
MARKED_FOR = timedelta(hours=1)


def mark(envelope_hash: bytes, *, now: datetime) -> None:
    """Note that this message is the canary's, before it is said."""
    CanaryEnvelope.objects.bulk_create([CanaryEnvelope(hash=envelope_hash, said_at=now)], ignore_conflicts=True)


def note_pseudonym(run: CanaryRun) -> None:
    """Unregistering forgets by what name the events of a registration are told."""
    rows = Registration.objects.filter(public_key_hash=canary_identity().key_hash, pseudonym__isnull=False)
    run.pseudonym = rows.values_list("pseudonym", flat=True).first()
    run.save(update_fields=["pseudonym"])


def look(envelope_hash: bytes) -> Facts:
    """How far one question got."""
    envelope = InboundEnvelope.objects.filter(hash=envelope_hash).values_list("state", "reason").first()
    reply = OutboundReply.objects.filter(envelope_hash=envelope_hash).values_list("state", flat=True).first()
    own = Attempt.objects.filter(notification__public_key_hash=canary_identity().key_hash)
    attempt = own.order_by("-pk").values_list("outcome", "code").first()
    (state, reason), (outcome, code) = envelope or ("", ""), attempt or ("", "")
    return Facts(state, reason, reply or "", attempt is not None, outcome or "", code)


def gorush_latency_ms() -> int | None:
    own = Attempt.objects.filter(notification__public_key_hash=canary_identity().key_hash)
    return own.order_by("-pk").values_list("latency_ms", flat=True).first()


@transaction.atomic
def remove_traces(*, now: datetime) -> None:
    """Everything of every run. Must not be called while one is under way, but by that run.

    Whoever processes one of its envelopes is waited for first, see `locks`.
    """
    marked = list(CanaryEnvelope.objects.values_list("hash", flat=True))
    InboundEnvelope.objects.filter(hash__in=marked).delete()
    OutboundReply.objects.filter(envelope_hash__in=marked).delete()
    key_hash = canary_identity().key_hash
    lock_all_about(key_hash)
    _remove_registrations(key_hash)
    NotificationRequest.objects.filter(notifications__public_key_hash=key_hash).delete()
    CanaryEnvelope.objects.filter(said_at__lt=now - MARKED_FOR).delete()


def _remove_registrations(key_hash: bytes) -> None:
    """With routes and grants, and with the events that are told by their pseudonyms."""
    registrations = Registration.objects.filter(public_key_hash=key_hash)
    rows = list(registrations.values_list("route", "pseudonym"))
    runs = CanaryRun.objects.filter(pseudonym__isnull=False)
    told_by = {pseudonym for _, pseudonym in rows} | set(runs.values_list("pseudonym", flat=True))
    pseudonyms = [pseudonym for pseudonym in told_by if pseudonym]
    registrations.delete()
    Route.objects.filter(pk__in=[route for route, _ in rows if route]).delete()
    RegistrationEvent.objects.filter(pseudonym__in=pseudonyms).delete()
    runs.update(pseudonym=None)
    # Without a word to the bridges: it is back in a minute, and as a new topic would be backfilled each time.
    TopicKey.objects.filter(name=topics.query_name(key_hash)).delete()
