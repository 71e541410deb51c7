"""The silence of notifications that succeed without an attempt: suppressed, duplicate, merged, or woken for later.

The sender must not learn which of its notifications these are. So each keeps its request waiting as long as a first
attempt from its recipient's queue would: by the times of the last first attempts there, chance decides. Attempts under
way count too, so that a queue which hangs is silent about everything.

    first attempt ──▶ its time ──┐
                                 ├──▶ a time by chance ──▶ the request is settled with the results of the moment
    request with a silence ──────┘
"""

import asyncio
import random
from collections import deque
from collections.abc import Collection
from datetime import datetime, timedelta
from time import monotonic
from typing import LiteralString

import structlog
from django.conf import settings
from django.db import Error

from kit.db.base import fetch
from kit.db.clock import clock
from kit.db.reasons import reason
from notifications.messages import Outcome, QueueKey, Result
from notifications.queues.claim import Claim

log = structlog.get_logger(__name__)

# First attempts that are remembered of each queue. The first concurrency limit of a queue is as large, so when it
# hangs, none is left of the time before.
REMEMBERED = 32
# Longest time between a batch's beginning and its sends that counts. Clocks may differ.
MAX_LEAD_SECONDS = 1.0
# A process that knows no attempt of a queue reads those of all processes within this time, this often at most.
READ_SINCE = timedelta(days=1)
READ_EVERY_SECONDS = 10.0


class FirstAttempt:
    """A first attempt: when it began, and, once it is over, how long it took, both in seconds."""

    def __init__(self, began: float, seconds: float | None = None) -> None:
        self.began = began
        self.seconds = seconds
        self.is_over = asyncio.Event()


class FirstAttempts:
    """The last first attempts of each queue, from the begin of the accepting batch to the result.

    The event loop adds them. Only `learn` and `know` are called by the thread that processes batches.
    """

    def __init__(self) -> None:
        self._of: dict[QueueKey, deque[FirstAttempt]] = {}
        self._read_at: dict[QueueKey, float] = {}

    def begin(self, claim: Claim) -> FirstAttempt | None:
        """Note that an attempt begins. Return None unless it is a first one, of a push that did not wait."""
        if claim.attempt_number > 1 or claim.slot.is_backlog or claim.is_probe:
            return None
        attempt = FirstAttempt(began(claim.started_at))
        self._of.setdefault(claim.queue, deque(maxlen=REMEMBERED)).append(attempt)
        return attempt

    def end(self, claim: Claim, attempt: FirstAttempt, result: Result) -> None:
        """Note that an attempt is over. Only those count that were sent, and that a sender learns no error of."""
        attempt.seconds = monotonic() - attempt.began
        attempt.is_over.set()
        own = self._of[claim.queue]
        if (result.is_untried or result.outcome is Outcome.DEAD) and attempt in own:
            own.remove(attempt)

    def know(self, queues: Collection[QueueKey]) -> bool:
        """Return whether some attempt of each of these queues is known."""
        return all(self._of.get(queue) for queue in queues)

    def learn(self, queues: Collection[QueueKey]) -> None:
        """Read the attempts of these queues that all processes made, if this one made none. It has just started."""
        for queue in dict.fromkeys(queue for queue in queues if not self._of.get(queue)):
            if queue.app_topic is not None and monotonic() >= self._read_at.get(queue, 0.0):
                self._read_at[queue] = monotonic() + READ_EVERY_SECONDS
                self._read(queue)

    def _read(self, queue: QueueKey) -> None:
        values = {**queue._asdict(), "since": clock.now() - READ_SINCE, "limit": REMEMBERED}
        try:
            found = [FirstAttempt(0.0, seconds) for (seconds,) in fetch(_LAST, values)]
        except Error as error:  # the pushes of the same batch are yet to be sent
            log.warning("first_attempts_not_read", reason=reason(error))
        else:
            self._of.setdefault(queue, deque(maxlen=REMEMBERED)).extend(found)

    async def wait(self, queue: QueueKey, since: float) -> None:
        """Wait until a first attempt of this queue that began at ``since`` (monotonic) would be over."""
        seconds = await self._draw(queue)
        await asyncio.sleep(since + seconds - monotonic())
        if hanging := self._find_hanging(queue):
            await hanging.is_over.wait()

    def _find_hanging(self, queue: QueueKey) -> FirstAttempt | None:
        """Return an attempt that is under way for longer than any that is over took, or None without one."""
        attempts, now = [*self._of.get(queue, ())], monotonic()  # a copy, as `learn` adds some in another thread
        longest = max((attempt.seconds for attempt in attempts if attempt.seconds is not None), default=0.0)
        under_way = (attempt for attempt in attempts if attempt.seconds is None)
        return next((attempt for attempt in under_way if now - attempt.began > longest), None)

    async def _draw(self, queue: QueueKey) -> float:
        """Return a time by chance: that of an attempt under way, or one between two neighbours of those that are over.

        Between them, so that no silence is exactly as long as a push that its sender could measure.
        """
        attempts = [*self._of.get(queue, ())]
        if not attempts:  # the only one was none that counts
            return float(settings.REPLY_DEADLINE_SECONDS)
        chosen = random.choice(attempts)  # noqa: S311 - what a sender can see of it is little
        if chosen.seconds is None:
            await chosen.is_over.wait()
            return chosen.seconds or 0.0
        over = sorted(attempt.seconds for attempt in attempts if attempt.seconds is not None)
        place = random.random() * (len(over) - 1)  # noqa: S311
        low, high = over[int(place)], over[min(int(place) + 1, len(over) - 1)]
        return float(low + (high - low) * (place % 1))


# The newest attempts of an app come from its index, and none of them was a fault of the push.
_LAST: LiteralString = f"""
    SELECT extract(epoch FROM ended_at - started_at)::float8 FROM notifications_endedattempt
    WHERE token_type = %(token_type)s AND app_topic = %(app_topic)s AND started_at >= %(since)s
        AND gateway = %(gateway)s AND number = 1 AND NOT is_probe AND began_at IS NOT NULL AND ended_at >= started_at
        AND outcome <> '{Outcome.DEAD}'
    ORDER BY started_at DESC LIMIT %(limit)s
"""


def began(at: datetime) -> float:
    """Return when a batch with this time began, as a monotonic time."""
    lead = (clock.now() - at).total_seconds()
    return monotonic() - min(max(lead, 0.0), MAX_LEAD_SECONDS)
