"""Diagnosis of a missing answer, from how far its question got in the tables.

The facts are judged in the order of the chain, so that the diagnosis names the first fault and not its consequences.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from pushserver.console.canary.engine import Diagnosis
from pushserver.console.canary.push import Push, push_trouble
from pushserver.console.waku.models import CanaryRun
from waku_bridge.models import InboundEnvelope, OutboundReply

Link: TypeAlias = CanaryRun.Link
Cause: TypeAlias = CanaryRun.Cause
WAITS_FOR = {
    InboundEnvelope.State.RECEIVED: "queue batches: it waits in the inbox",
    InboundEnvelope.State.POSTPONED: "queue batches: more comes than can be decided, and it is about no proven address",
    InboundEnvelope.State.PENDING_KEY: "queue keys: it waits for the key of its topic",
}


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts in the database about one question. A fact is empty where its row or its column is."""

    envelope: str = ""
    reason: str = ""
    reply: str = ""
    push: Push = field(default_factory=Push)


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
    return (diagnose_push(facts.push) if answer == Link.REQUEST_ANSWER else None) or _diagnose_reply(answer, facts)


def _diagnose_reply(answer: Link, facts: Facts) -> Diagnosis:
    if not facts.reply:
        return Diagnosis(answer, Cause.WORKER, "no answer was written")
    if facts.reply == OutboundReply.State.PENDING:
        return Diagnosis(answer, Cause.REPLY, "no node takes it: it waits in the outbox")
    return Diagnosis(answer, Cause.REPLY, f"the answer is {facts.reply}, and no store has it")


def diagnose_push(push: Push) -> Diagnosis | None:
    """Return the fault of the push itself, or None."""
    if trouble := push_trouble(push):
        return Diagnosis(Link.GATEWAY, Cause.GATEWAY if trouble.is_of_gateway else Cause.WORKER, trouble.detail)
    return None
