"""Whether the network has what a node took: store nodes are asked for the hashes of the last seconds' replies.

A node that takes a message may lose it, and nwaku's relay route says OK also when no peer listens. A store that does
not answer says nothing, and nothing is published again for that: a store's outage must not become a flood.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from time import monotonic

import structlog
from django.db.models import F, QuerySet
from prometheus_client import Counter

from notifications.connections import submit
from waku_bridge.metrics import REPLIES_ABANDONED, REPLIES_CONFIRMED, REPLIES_UNCHECKED, REPLIES_UNCONFIRMED
from waku_bridge.models import OutboundReply
from waku_bridge.node import NodeError, WakuNode
from waku_bridge.outbound.nodes import Nodes

log = structlog.get_logger(__name__)
State = OutboundReply.State

STORES_ASKED = 2
# A store answers with 100 messages at most.
HASHES_PER_QUERY = 100
# What one run looks at: 2 000 replies per second when it comes every two.
LIMIT = 4000
# When a network loses everything, what is published again must leave room for what is new.
MAX_REPEATS_PER_RUN = 200
MAX_REPEATS = 4
ASK_AGAIN_AFTER = timedelta(seconds=10)
GIVE_UP_AFTER = timedelta(seconds=60)
# A worker's clock may be behind ours: what is to be published again is due at once.
CLOCK_TOLERANCE = timedelta(seconds=2)


class Verdict(Enum):
    CONFIRMED = auto()
    MISSING = auto()
    UNKNOWN = auto()  # no store answered


@dataclass(frozen=True, slots=True)
class Checked:
    """A published reply, by its hash (32 bytes) and the URL of the node that took it."""

    pk: int
    hash: bytes
    node: str
    repeat_count: int
    published_at: datetime


def judge(taker: str, known_by: Mapping[str, bool]) -> Verdict:
    """``known_by``: what each store that answered said, by its URL. The node that took a message has it in its own
    store whether or not it told anybody, so that its word counts only where no other store answered.
    """
    others = [is_known for url, is_known in known_by.items() if url != taker]
    said = others or list(known_by.values())
    if not said:
        return Verdict.UNKNOWN
    return Verdict.CONFIRMED if any(said) else Verdict.MISSING


def confirm(stores: Nodes, *, now: datetime) -> list[int]:
    """Ask for the replies that are due. Returns the ids of those to be published again."""
    due = _due(now)
    if not due:
        return []
    answers = submit(_ask_all(due, stores)).result()
    verdicts: dict[Verdict, list[Checked]] = defaultdict(list)
    for reply in due:
        verdicts[judge(reply.node, answers.get(reply.hash, {}))].append(reply)
    _close(verdicts[Verdict.CONFIRMED], now=now)
    _ask_again(verdicts[Verdict.UNKNOWN], REPLIES_UNCHECKED, now=now)
    return _repeat(verdicts[Verdict.MISSING], now=now)


def _due(now: datetime) -> list[Checked]:
    due = OutboundReply.objects.filter(state=State.PUBLISHED, next_attempt_at__lte=now).order_by("next_attempt_at")
    rows = due.values_list("pk", "message_hash", "node", "repeat_count", "published_at")[:LIMIT]
    return [Checked(pk, bytes(known_as or b""), node, count, at or now) for pk, known_as, node, count, at in rows]


async def _ask_all(replies: Iterable[Checked], stores: Nodes) -> dict[bytes, dict[str, bool]]:
    """For each hash what the stores said that answered."""
    wanted: dict[WakuNode, list[bytes]] = defaultdict(list)
    preferred: dict[str, list[WakuNode]] = {}
    for reply in replies:
        if reply.node not in preferred:
            preferred[reply.node] = stores.trusted(last=reply.node)[:STORES_ASKED]
        for store in preferred[reply.node]:
            wanted[store].append(reply.hash)
    answers: dict[bytes, dict[str, bool]] = defaultdict(dict)
    await asyncio.gather(*(_ask(store, hashes, stores, answers) for store, hashes in wanted.items()))
    return answers


async def _ask(store: WakuNode, hashes: Sequence[bytes], stores: Nodes, answers: dict[bytes, dict[str, bool]]) -> None:
    """One query after the other: the store serves others, too. It is left alone after the first that fails."""
    for start in range(0, len(hashes), HASHES_PER_QUERY):
        some, started = hashes[start : start + HASHES_PER_QUERY], monotonic()
        try:
            known = await store.known(some)
        except NodeError as error:
            log.warning("store_not_asked", node=store.name, error=type(error).__name__, code=error.code)
            stores.failed(store, error)
            return
        stores.answered(store, monotonic() - started)
        for each in some:
            answers[each][store.url] = each in known


def _close(replies: Sequence[Checked], *, now: datetime) -> None:
    if replies:
        closed = _still_published(replies).update(state=State.CONFIRMED, confirmed_at=now, payload=None)
        REPLIES_CONFIRMED.inc(closed)


def _ask_again(replies: Sequence[Checked], given_up: Counter, *, now: datetime) -> None:
    """For a minute after they were published; then nobody waits any more, and they are closed and counted."""
    old = [reply for reply in replies if reply.published_at <= now - GIVE_UP_AFTER]
    young = [reply for reply in replies if reply.published_at > now - GIVE_UP_AFTER]
    _give_up(old, given_up)
    if young:
        _still_published(young).update(next_attempt_at=now + ASK_AGAIN_AFTER)


def _give_up(replies: Sequence[Checked], counter: Counter) -> None:
    if replies:
        given_up = _still_published(replies).update(state=State.UNCONFIRMED, payload=None)
        counter.inc(given_up)
        log.warning("replies_given_up", count=given_up)


def _repeat(replies: Sequence[Checked], *, now: datetime) -> list[int]:
    """Those that no store has go out again, a bounded number of times and not all at once."""
    if not replies:
        return []
    REPLIES_UNCONFIRMED.inc(len(replies))
    log.warning("replies_unconfirmed", count=len(replies))
    _give_up([reply for reply in replies if reply.repeat_count >= MAX_REPEATS], REPLIES_ABANDONED)
    left = [reply for reply in replies if reply.repeat_count < MAX_REPEATS]
    again, later = left[:MAX_REPEATS_PER_RUN], left[MAX_REPEATS_PER_RUN:]
    _ask_again(later, REPLIES_ABANDONED, now=now)
    # Not those that another run has sent out again meanwhile: they are not due any more.
    _still_published(again).filter(next_attempt_at__lte=now).update(
        state=State.PENDING,
        repeat_count=F("repeat_count") + 1,
        next_attempt_at=now - CLOCK_TOLERANCE,
        enqueued_at=now,
    )
    return [reply.pk for reply in again]


def _still_published(replies: Iterable[Checked]) -> "QuerySet[OutboundReply]":
    return OutboundReply.objects.filter(pk__in=[reply.pk for reply in replies], state=State.PUBLISHED)
