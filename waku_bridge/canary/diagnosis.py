"""Why an answer does not come, concluded from how far the question got. Pure.

The facts are judged in the order of the chain, so that the first fault is named and not what follows from it.
"""

from dataclasses import dataclass
from typing import TypeAlias

from notifications.halts import NO_PUSH_IS_TRIED
from notifications.models import Attempt
from waku_bridge.models import CanaryRun, InboundEnvelope, OutboundReply

Link: TypeAlias = CanaryRun.Link
Cause: TypeAlias = CanaryRun.Cause
WAITS_FOR = {
    InboundEnvelope.State.RECEIVED: "queue batches: it waits in the inbox",
    InboundEnvelope.State.POSTPONED: "queue batches: more comes than can be worked off, and it waits as strangers do",
    InboundEnvelope.State.PENDING_KEY: "queue keys: it waits for the key of its topic",
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What the database knows of one question. A fact is empty where there is no row, or nothing in it yet.

    ``has_attempt`` says whether the push was attempted, ``attempt`` is its outcome, and ``code`` is our word for what
    gorush said. ``is_drained`` says that an operator stopped delivery.
    """

    envelope: str = ""
    reason: str = ""
    reply: str = ""
    has_attempt: bool = False
    attempt: str = ""
    code: str = ""
    is_drained: bool = False


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The link that broke, and the cause. ``detail`` is more about the cause, for an operator, and may be empty."""

    link: Link
    cause: Cause
    detail: str = ""


def diagnose(answer: Link, facts: Facts) -> Diagnosis:
    """Return why ``answer`` did not come, or was a refusal."""
    if not facts.envelope:
        return Diagnosis(answer, Cause.BRIDGE)
    if facts.envelope in WAITS_FOR:
        waits_for = WAITS_FOR[InboundEnvelope.State(facts.envelope)]
        return Diagnosis(answer, Cause.WORKER, waits_for)
    if facts.reason or facts.envelope != InboundEnvelope.State.PROCESSED:
        return Diagnosis(
            answer, Cause.WORKER, f"the envelope was {facts.envelope}: {facts.reason or 'no reason given'}"
        )
    return (push_trouble(facts) if answer == Link.REQUEST_ANSWER else None) or _reply_trouble(answer, facts)


def _reply_trouble(answer: Link, facts: Facts) -> Diagnosis:
    if not facts.reply:
        return Diagnosis(answer, Cause.WORKER, "no answer was written")
    if facts.reply == OutboundReply.State.PENDING:
        return Diagnosis(answer, Cause.REPLY, "no node takes it: it waits in the outbox")
    return Diagnosis(answer, Cause.REPLY, f"the answer is {facts.reply}, and no store has it")


def push_trouble(facts: Facts) -> Diagnosis | None:
    """Return what is wrong with the push itself, if anything is."""
    if not facts.has_attempt:
        return Diagnosis(Link.GORUSH, Cause.WORKER, NO_PUSH_IS_TRIED if facts.is_drained else "nobody tries the push")
    if not facts.attempt:
        return Diagnosis(Link.GORUSH, Cause.GORUSH, "it does not answer")
    if facts.attempt != Attempt.Outcome.DELIVERED:
        return Diagnosis(Link.GORUSH, Cause.GORUSH, f"{facts.attempt}: {facts.code}")
    return None
