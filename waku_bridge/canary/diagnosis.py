"""Why an answer does not come: concluded from how far the question got. Pure.

Looked at in the order of the chain, so that the first thing that is wrong is named and not what follows from it.
"""

from dataclasses import dataclass
from typing import TypeAlias

from notifications.models import Attempt
from waku_bridge.models import CanaryRun, InboundEnvelope, OutboundReply

Link: TypeAlias = CanaryRun.Link
Cause: TypeAlias = CanaryRun.Cause
UNDECIDED = frozenset({InboundEnvelope.State.RECEIVED, InboundEnvelope.State.UNKEYED})


@dataclass(frozen=True, slots=True)
class Facts:
    """What the database knows of one question; empty where there is no row, or nothing yet.

    ``has_attempt`` says whether the push was tried, ``attempt`` is its outcome, ``code`` our word for what gorush said.
    """

    envelope: str = ""
    reason: str = ""
    reply: str = ""
    has_attempt: bool = False
    attempt: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """``detail`` is more about the cause, for an operator, and may be empty."""

    link: Link
    cause: Cause
    detail: str = ""


def diagnose(answer: Link, facts: Facts) -> Diagnosis:
    """Why ``answer`` did not come, or was a no."""
    if not facts.envelope:
        return Diagnosis(answer, Cause.BRIDGE)
    if facts.envelope in UNDECIDED:
        return Diagnosis(answer, Cause.WORKER, "queue envelopes: it waits in the inbox")
    if facts.reason or facts.envelope != InboundEnvelope.State.PROCESSED:
        return Diagnosis(
            answer, Cause.WORKER, f"the envelope was {facts.envelope}: {facts.reason or 'no reason given'}"
        )
    return (push_trouble(facts) if answer == Link.REQUEST_ANSWER else None) or _reply_trouble(answer, facts)


def _reply_trouble(answer: Link, facts: Facts) -> Diagnosis:
    if not facts.reply:
        return Diagnosis(answer, Cause.WORKER, "no answer was written")
    if facts.reply == OutboundReply.State.PENDING:
        return Diagnosis(answer, Cause.REPLY, "queue replies: it waits in the outbox")
    return Diagnosis(answer, Cause.REPLY, f"the answer is {facts.reply}, and no store has it")


def push_trouble(facts: Facts) -> Diagnosis | None:
    """What is wrong with the push itself, if anything is."""
    if not facts.has_attempt:
        return Diagnosis(Link.GORUSH, Cause.WORKER, "queue delivery: nobody tries the push")
    if not facts.attempt:
        return Diagnosis(Link.GORUSH, Cause.GORUSH, "it does not answer")
    if facts.attempt != Attempt.Outcome.DELIVERED:
        return Diagnosis(Link.GORUSH, Cause.GORUSH, f"{facts.attempt}: {facts.code}")
    return None
