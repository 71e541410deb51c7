"""The result of a load."""

from collections.abc import Sequence
from dataclasses import dataclass

from embedded.load.arrivals import Arrivals, arrivals
from embedded.load.xmpp.sending import Sent
from kit.figures import Distribution, distribution


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a load. ``pushes`` is None when gorush keeps no record.

    ``answers`` are those of XEP-0357, because Push 2.0 has none, and ``refused`` counts errors by their condition.
    ``lag_ms`` is the delay with which notifications left: a delay near the latencies makes them worthless.
    """

    notifications: int
    pushes: Arrivals | None
    answers: Arrivals
    refused: dict[str, int]
    lag_ms: Distribution | None
    cpu_ms_per_notification: float

    @property
    def is_clean(self) -> bool:
        """Return whether nothing was lost, doubled or refused."""
        both = [self.answers, *([self.pushes] if self.pushes else [])]
        return not self.refused and not any(each.lost + each.doubled for each in both)


def evaluate(sent: Sent, pushes: Sequence[tuple[str, int]] | None) -> Result:
    """Return the result of a load."""
    count = len(sent.due_ns)
    return Result(
        notifications=count,
        pushes=None if pushes is None else arrivals(sent.due_ns, pushes),
        answers=arrivals(sent.asked_ns, sent.stored_ns),
        refused=dict(sent.refused),
        lag_ms=distribution(sent.lags_ms),
        cpu_ms_per_notification=round(sent.cpu_seconds * 1000 / max(1, count), 3),
    )
