"""Envelopes whose topic has a pending key: they wait in a state of their own, so that later envelopes pass them."""

from django.db.models import QuerySet

from waku_bridge import query_topics
from waku_bridge.models import OpenEnvelope
from waku_bridge.query_topics import CpuBudget

State = OpenEnvelope.State


def are_any() -> bool:
    """Return whether envelopes wait for a key."""
    return _pending().exists()


def call_back(*, budget: CpuBudget, limit: int) -> list[bytes]:
    """Derive keys that envelopes wait for, within the budget, and return the hashes of the envelopes that are free.

    The newest come first: their senders may still wait, and a flood of useless envelopes before them delays nobody.
    """
    pending = _pending()
    content_topics = dict(pending.order_by("-received_at").values_list("hash", "content_topic")[:limit])
    missing = query_topics.derive_keys(set(content_topics.values()), budget=budget)
    hashes = [envelope_hash for envelope_hash, topic in content_topics.items() if topic not in missing]
    pending.filter(hash__in=hashes).update(state=State.RECEIVED)
    return hashes


def _pending() -> QuerySet[OpenEnvelope]:
    return OpenEnvelope.objects.filter(state=State.PENDING_KEY)
