"""Confirmation of published replies: store nodes are queried for the hashes of the replies of the last seconds.

A node that takes a message may lose it, and nwaku's relay route returns OK also when no peer is connected. A store that
does not answer leaves the verdict open. No reply is published again for that, so that the outage of a store does not
cause a flood.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from time import monotonic
from typing import NamedTuple

import structlog

from waku_bridge.dialect import NodeError
from waku_bridge.node import Nodes, WakuNode

log = structlog.get_logger(__name__)

STORES_ASKED = 2
# A store answers with at most 100 messages.
HASHES_PER_QUERY = 100
# Limit of the replies in one round of queries: 2 000 per second, as there is a round every two seconds.
LIMIT = 4000
ASK_EVERY_SECONDS = 2.0
# Time in which the replies of a batch join one round.
GATHERING_SECONDS = 0.05


class Verdict(Enum):
    """The result of querying the stores for a reply."""

    CONFIRMED = auto()
    MISSING = auto()
    UNKNOWN = auto()  # no store answered


class Question(NamedTuple):
    """A reply by its hash (32 bytes) in stores, and the URL of the node that took it, where that is known."""

    hash: bytes
    taker: str
    verdict: "asyncio.Future[Verdict]"


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


class Stores:
    """The stores of a process, which are queried for many replies in one round. Only the event loop may use it."""

    def __init__(self, stores: Nodes) -> None:
        self._stores = stores
        self._questions: list[Question] = []
        self._asking: asyncio.Task[None] | None = None
        self._next_at = 0.0

    @property
    def exist(self) -> bool:
        """Return whether any store is configured."""
        return bool(self._stores.in_order())

    async def ask(self, reply_hash: bytes, taker: str) -> Verdict:
        """Query the stores for a reply in the next round, and return the verdict."""
        if not self.exist:
            return Verdict.UNKNOWN
        question = Question(reply_hash, taker, asyncio.get_running_loop().create_future())
        self._questions.append(question)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_in_rounds())
        return await question.verdict

    async def _ask_in_rounds(self) -> None:
        loop = asyncio.get_running_loop()
        while self._questions:
            await asyncio.sleep(max(self._next_at - loop.time(), GATHERING_SECONDS))
            self._next_at = loop.time() + ASK_EVERY_SECONDS
            questions, self._questions = self._questions[:LIMIT], self._questions[LIMIT:]
            answers: Mapping[bytes, Mapping[str, bool]] = {}
            try:
                answers = await self._ask_all(questions)
            except Exception as error:  # noqa: BLE001 - a fault of ours: the verdict is UNKNOWN, and the query is repeated
                log.error("stores_not_asked", error=type(error).__name__)  # noqa: TRY400 - nothing to trace
            for question in questions:
                if not question.verdict.done():  # its reply may have been given up
                    question.verdict.set_result(judge(question.taker, answers.get(question.hash, {})))

    async def _ask_all(self, questions: Iterable[Question]) -> dict[bytes, dict[str, bool]]:
        """Return for each hash whether the stores that answered have it, by the URL of the store."""
        wanted: dict[WakuNode, list[bytes]] = defaultdict(list)
        preferred: dict[str, list[WakuNode]] = {}
        for question in questions:
            if question.taker not in preferred:
                preferred[question.taker] = self._stores.trusted(last=question.taker)[:STORES_ASKED]
            for store in preferred[question.taker]:
                wanted[store].append(question.hash)
        answers: dict[bytes, dict[str, bool]] = defaultdict(dict)
        await asyncio.gather(*(self._ask_one(store, hashes, answers) for store, hashes in wanted.items()))
        return answers

    async def _ask_one(self, store: WakuNode, hashes: Sequence[bytes], answers: dict[bytes, dict[str, bool]]) -> None:
        """Send queries to a store one after the other, because it serves others too, and stop at the first failure."""
        for start in range(0, len(hashes), HASHES_PER_QUERY):
            some = hashes[start : start + HASHES_PER_QUERY]
            started = monotonic()
            try:
                known = await store.known(some)
            except NodeError as error:
                log.warning("store_not_asked", node=store.name, error=type(error).__name__, code=error.code)
                self._stores.failed(store, error)
                return
            self._stores.answered(store, monotonic() - started)
            for each in some:
                answers[each][store.url] = each in known
