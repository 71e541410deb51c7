"""Confirmation of published replies: store nodes are queried for the hashes of the replies of the last seconds.

A node that takes a message may lose it, and nwaku's relay route returns OK also when no peer is connected. A store that
does not answer leaves the verdict open. No reply is published again for that, so that the outage of a store does not
cause a flood.
"""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from functools import partial
from heapq import heappop, heappush
from time import monotonic, time_ns

import structlog
from django.db import transaction
from django.db.models import QuerySet
from prometheus_client import Counter

from kit.batches.batch import LONG_AGO, Wakeup
from kit.batches.inflight import InFlight
from kit.db.partitions import IS_UNDER_WAY, UNDER_WAY, day_of
from kit.db.statements import array_value, fetch, unindexed, write, write_rows
from kit.tracing.spans import Role, step
from waku_bridge.metrics import REPLIES_ABANDONED, REPLIES_CONFIRMED, REPLIES_UNCHECKED, REPLIES_UNCONFIRMED
from waku_bridge.models import OutboundReply
from waku_bridge.node import NodeError, WakuNode
from waku_bridge.node.client import Nodes

log = structlog.get_logger(__name__)
State = OutboundReply.State

STORES_ASKED = 2
# A store answers with at most 100 messages.
HASHES_PER_QUERY = 100
# Limit of the replies in one round of queries: 2 000 per second, as there is a round every two seconds.
LIMIT = 4000
# The process that published a reply also queries the stores for it. When it is late by this much, another one does.
LATE = timedelta(seconds=10)
# Limit of repeated publications, which leaves capacity for new replies while a network loses everything.
MAX_REPEATS_PER_RUN = 200
MAX_REPEATS = 4
ASK_AGAIN_AFTER = timedelta(seconds=10)
GIVE_UP_AFTER = timedelta(seconds=60)
# A reply that is to be published again is due at once, also for a worker whose clock is behind ours by this much.
CLOCK_TOLERANCE = timedelta(seconds=2)


class Verdict(Enum):
    """The result of querying the stores for a reply."""

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
    envelope_hash: bytes = b""

    @property
    def key(self) -> tuple[int, bytes]:
        """Return the identity of the reply. After a fail-over another reply may have the same ``pk``."""
        return self.pk, self.envelope_hash


Verdicted = tuple[Checked, Verdict]


def judge(taker: str, known_by: Mapping[str, bool]) -> Verdict:
    """Return the verdict about a reply. ``known_by`` says, for each store URL that answered, if it has the reply.

    The node that took a message has it in its own store whether or not it reached any peer. So the answer of that node
    counts only where no other store answered.
    """
    others = [is_known for url, is_known in known_by.items() if url != taker]
    answers = others or list(known_by.values())
    if not answers:
        return Verdict.UNKNOWN
    return Verdict.CONFIRMED if any(answers) else Verdict.MISSING


class Confirmations(InFlight[list[Verdicted]]):
    """The replies of this process that still need a confirmation, and the verdicts that are not recorded yet.

    At most one round of queries is under way.
    """

    def __init__(self, stores: Nodes, wakeup: Wakeup) -> None:
        super().__init__(wakeup)
        self._stores = stores
        self._due: list[tuple[datetime, int, Checked]] = []
        # The keys of the replies, so that each is queried once at a time.
        self._expected: set[tuple[int, bytes]] = set()
        # It orders replies that are due at the same time, because `Checked` has no order.
        self._count = itertools.count()

    def expect(self, replies: Iterable[Checked], *, at: datetime) -> None:
        """Query the stores for these replies at that time."""
        for reply in replies:
            if reply.key not in self._expected:
                self._expected.add(reply.key)
                heappush(self._due, (at, next(self._count), reply))

    def capacity(self) -> int:
        """Return how many replies of other processes this one may take over, as its stores may be slow."""
        return max(LIMIT - len(self._expected), 0)

    def next_due_at(self) -> datetime | None:
        """Return the time of the next round of queries, or None while one is under way or no reply waits."""
        return self._due[0][0] if self._due and not self.under_way else None

    def ask(self, *, now: datetime) -> None:
        """Start a round of queries for the replies that are due, unless one is under way. The verdicts follow later.

        A reply that is late by `GIVE_UP_AFTER` gets the verdict UNKNOWN without a query, as no client waits for it.
        """
        due: list[Checked] = []
        late: list[Checked] = []
        while not self.under_way and self._due and self._due[0][0] <= now and len(due) < LIMIT:
            at, _, reply = heappop(self._due)
            (due if at > now - GIVE_UP_AFTER else late).append(reply)
        if due or late:
            self.start([partial(self._ask, due, late)])

    def recorded(self, count: int) -> None:
        """Forget the replies of the oldest ``count`` rounds, because their verdicts are stored."""
        self._expected -= {reply.key for verdicts in self.peek(count) for reply, _ in verdicts}
        super().recorded(count)

    async def _ask(self, due: Sequence[Checked], late: Sequence[Checked]) -> list[Verdicted]:
        answers: dict[bytes, dict[str, bool]] = {}
        began_ns = time_ns()
        try:
            answers = await _ask_all(due, self._stores)
        except Exception as error:  # noqa: BLE001 - a fault of ours: the verdict is UNKNOWN, and the query is repeated
            log.error("stores_not_asked", error=type(error).__name__)  # noqa: TRY400 - nothing to trace
        asked = [(reply, judge(reply.node, answers.get(reply.hash, {}))) for reply in due]
        for reply, verdict in asked:
            attributes, is_error = {"outcome": verdict.name.lower()}, verdict is not Verdict.CONFIRMED
            step("confirm", reply.envelope_hash, attributes, began_ns=began_ns, role=Role.CLIENT, is_error=is_error)
        return asked + [(reply, Verdict.UNKNOWN) for reply in late]


def record_verdicts(verdicts: Iterable[Verdicted], *, now: datetime) -> list[Checked]:
    """Write the verdicts, in a transaction of the caller, and return the replies to query again."""
    by_verdict: dict[Verdict, list[Checked]] = defaultdict(list)
    for reply, verdict in verdicts:
        by_verdict[verdict].append(reply)
    _close(by_verdict[Verdict.CONFIRMED], now=now)
    later = _ask_again(by_verdict[Verdict.UNKNOWN], REPLIES_UNCHECKED, now=now)
    return later + _repeat(by_verdict[Verdict.MISSING], now=now)


_PUBLISHED = f"""
    FROM waku_bridge_outboundreply_under_way
    WHERE state = '{State.PUBLISHED}' AND next_attempt_at >= %(nothing_before)s
"""
UNCONFIRMED = f"SELECT {_PUBLISHED} AND next_attempt_at <= %(now)s - interval '10 seconds'"
OLDEST_UNCONFIRMED = f"SELECT min(next_attempt_at) {_PUBLISHED}"
_TAKE_UP = f"""
    WITH late AS (
        SELECT id {_PUBLISHED} AND next_attempt_at <= %(late)s
        ORDER BY next_attempt_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    )
    UPDATE waku_bridge_outboundreply_under_way AS reply SET next_attempt_at = %(again_at)s
    WHERE reply.id = ANY (ARRAY(SELECT id FROM late))
    RETURNING reply.id, message_hash, node, repeat_count, published_at, envelope_hash
"""


def take_up_unconfirmed(*, limit: int, now: datetime, nothing_before: datetime = LONG_AGO) -> list[Checked]:
    """Take over replies whose own process is late by `LATE` with its query."""
    times = {"late": now - LATE, "again_at": now + ASK_AGAIN_AFTER, "nothing_before": nothing_before}
    rows = fetch(_TAKE_UP, {"limit": limit, **times})
    return [Checked(pk, known_as or b"", node, count, at or now, to) for pk, known_as, node, count, at, to in rows]


async def _ask_all(replies: Iterable[Checked], stores: Nodes) -> dict[bytes, dict[str, bool]]:
    """Return for each hash whether the stores that answered have it, by the URL of the store."""
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
    """Send queries to a store one after the other, because it serves others too, and stop at the first that fails."""
    for start in range(0, len(hashes), HASHES_PER_QUERY):
        some = hashes[start : start + HASHES_PER_QUERY]
        started = monotonic()
        try:
            known = await store.known(some)
        except NodeError as error:
            log.warning("store_not_asked", node=store.name, error=type(error).__name__, code=error.code)
            stores.failed(store, error)
            return
        stores.answered(store, monotonic() - started)
        for each in some:
            answers[each][store.url] = each in known


_CONFIRMED = f"""
    id = ANY (%(ids)b::bigint[]) AND envelope_hash = ANY (%(questions)b::bytea[])
    AND {unindexed("state")} = '{State.PUBLISHED}'
"""
_CLOSE = f"""
    WITH discarded AS (
        DELETE FROM waku_bridge_outboundreply_under_way WHERE {_CONFIRMED} AND is_discarded RETURNING id
    ), kept AS (
        UPDATE waku_bridge_outboundreply
        SET state = '{State.CONFIRMED}', confirmed_at = %(now)s, payload = NULL, ended_on = %(today)s
        WHERE {IS_UNDER_WAY} AND {_CONFIRMED} AND NOT is_discarded RETURNING id
    )
    SELECT id FROM discarded UNION ALL SELECT id FROM kept
"""


def _close(replies: Sequence[Checked], *, now: datetime) -> None:
    if replies:
        ids, questions = [reply.pk for reply in replies], [reply.envelope_hash for reply in replies]
        values = {"now": now, "today": day_of(now), "ids": ids, "questions": questions}
        closed = write(_CLOSE, values)
        transaction.on_commit(lambda: REPLIES_CONFIRMED.inc(len(closed.rows())), robust=True)


def _ask_again(replies: Sequence[Checked], given_up: Counter, *, now: datetime) -> list[Checked]:
    """Return the replies to query again, and close and count those that were published `GIVE_UP_AFTER` ago.

    No client waits for those any more.
    """
    _give_up([reply for reply in replies if reply.published_at <= now - GIVE_UP_AFTER], given_up, now=now)
    young = [reply for reply in replies if reply.published_at > now - GIVE_UP_AFTER]
    if young:
        _still_published(young).update(next_attempt_at=now + ASK_AGAIN_AFTER)
    return young


def _give_up(replies: Sequence[Checked], counter: Counter, *, now: datetime) -> None:
    if replies:
        published = _still_published(replies)
        given_up, _ = published.filter(is_discarded=True).delete()
        given_up += published.update(state=State.UNCONFIRMED, payload=None, ended_on=day_of(now))
        counter.inc(given_up)
        log.warning("replies_given_up", count=given_up)


# It changes only replies that no process has published again since the query.
_IDS = "%(ids)b::bigint[]"
_of = partial(array_value, _IDS, "reply.id")
_REPEAT = f"""
    UPDATE waku_bridge_outboundreply_under_way AS reply
    SET state = '{State.PENDING}', repeat_count = reply.repeat_count + 1, next_attempt_at = %(due_at)s
    WHERE reply.id = ANY ({_IDS}) AND reply.envelope_hash = {_of("questions", "bytea")}
        AND {unindexed("reply.state")} = '{State.PUBLISHED}' AND reply.repeat_count = {_of("counts", "smallint")}
"""


def _repeat(replies: Sequence[Checked], *, now: datetime) -> list[Checked]:
    """Have replies that no store has published again, and return those that wait because of `MAX_REPEATS_PER_RUN`.

    A reply that was repeated `MAX_REPEATS` times is closed.
    """
    if not replies:
        return []
    REPLIES_UNCONFIRMED.inc(len(replies))
    log.warning("replies_unconfirmed", count=len(replies))
    _give_up([reply for reply in replies if reply.repeat_count >= MAX_REPEATS], REPLIES_ABANDONED, now=now)
    left = [reply for reply in replies if reply.repeat_count < MAX_REPEATS]
    again = left[:MAX_REPEATS_PER_RUN]
    rows = [(reply.pk, reply.envelope_hash, reply.repeat_count) for reply in again]
    write_rows(_REPEAT, ("ids", "questions", "counts"), rows, due_at=now - CLOCK_TOLERANCE)
    return _ask_again(left[MAX_REPEATS_PER_RUN:], REPLIES_ABANDONED, now=now)


def _still_published(replies: Sequence[Checked]) -> "QuerySet[OutboundReply]":
    """Return the rows of these replies, without other replies that got the same ``pk`` after a fail-over."""
    questions = [reply.envelope_hash for reply in replies]
    ids = [reply.pk for reply in replies]
    under_way = OutboundReply.objects.filter(ended_on__gte=UNDER_WAY, state=State.PUBLISHED)
    return under_way.filter(pk__in=ids, envelope_hash__in=questions)
