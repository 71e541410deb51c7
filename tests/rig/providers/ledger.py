"""Ledger of every push that Apple and Google received, in order: the ground truth for "sent once"."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from embedded.gorush.outcomes import Outcome, Platform, decide
from embedded.gorush.server import Faults


@dataclass(frozen=True, slots=True)
class Received:
    """One push. ``error`` is the reason of its refusal, empty if it was accepted. ``body`` is the JSON as sent,
    ``data`` the app's part of it.
    """

    id: int
    received_ms: int
    platform: str
    token: str
    topic: str
    collapse_id: str
    error: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    data: Mapping[str, Any]


class Ledger:
    """Record of pushes. ``faults`` apply to all pushes. A push that is answered late was received at once."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._received: list[Received] = []
        self._tries: Counter[tuple[str, str]] = Counter()

    async def receive(
        self,
        platform: Platform,
        *,
        token: str,
        topic: str,
        collapse_id: str,
        headers: Mapping[str, str],
        body: Mapping[str, Any],
        data: Mapping[str, Any],
        refusal: str = "",
    ) -> Outcome:
        """Record one push, wait for its delay, and return its outcome: ``refusal``, or the fate that its
        token names.
        """
        outcome = Outcome(error=refusal) if refusal else decide(token, platform, self._tries[token, collapse_id])
        self._tries[token, collapse_id] += 1
        error, now_ms, name = outcome.upstream_error, time.time_ns() // 1_000_000, platform.name.lower()
        number = len(self._received) + 1
        self._received.append(Received(number, now_ms, name, token, topic, collapse_id, error, headers, body, data))
        await asyncio.sleep((outcome.delay_ms + self._faults.delay_ms) / 1000)
        return outcome

    def since(self, push_id: int) -> list[dict[str, Any]]:
        """Return the pushes after this id, oldest first."""
        return [asdict(push) for push in self._received[push_id:]]
