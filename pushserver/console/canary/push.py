"""The push of a canary: how far it got, and what is wrong with it."""

from dataclasses import dataclass
from typing import NamedTuple

from django.db.models import QuerySet

from notifications.messages import Outcome
from notifications.models import Attempt
from notifications.queues import halts


@dataclass(frozen=True, slots=True)
class Push:
    """The state of a canary's push: whether it has an attempt, its outcome, and our code for the gateway's answer.

    ``is_drained`` says that an operator stopped delivery.
    """

    has_attempt: bool = False
    outcome: str = ""
    code: str = ""
    latency_ms: int | None = None
    is_drained: bool = False


class PushTrouble(NamedTuple):
    """A fault of a canary's push. The workers are at fault unless ``is_of_gateway``."""

    is_of_gateway: bool
    detail: str


def find_push(attempts: QuerySet[Attempt]) -> Push:
    """Return the state of the push that has the newest of these attempts."""
    found = attempts.order_by("-pk").values_list("outcome", "code", "latency_ms").first()
    if found is None:
        return Push(is_drained=halts.drain() is not None)
    outcome, code, latency_ms = found
    return Push(True, outcome or "", code, latency_ms)


def push_trouble(push: Push) -> PushTrouble | None:
    """Return the fault of a push, or None where it has none."""
    if not push.has_attempt:
        return PushTrouble(
            False, "an operator stopped delivery: no push is tried" if push.is_drained else "no worker tries the push"
        )
    if not push.outcome:
        return PushTrouble(True, "it does not answer")
    if push.outcome != Outcome.DELIVERED:
        return PushTrouble(True, f"{push.outcome}: {push.code}")
    return None
