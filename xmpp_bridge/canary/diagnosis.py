"""Why a round trip stops, concluded from how far it got.

The facts are judged in the order of the chain, so that the first fault is named and not what follows from it.
"""

from dataclasses import dataclass
from typing import TypeAlias

from notifications.halts import NO_PUSH_IS_TRIED
from notifications.models import Attempt
from xmpp_bridge.models import CanaryRun

Link: TypeAlias = CanaryRun.Link
Cause: TypeAlias = CanaryRun.Cause


@dataclass(frozen=True, slots=True)
class Stanza:
    """What became of a stanza. ``component`` says what is wrong with the connection of the component, if anything is,
    and ``has_effect`` whether the tables show that the component carried the stanza out.
    """

    component: str = ""
    is_said: bool = False
    is_answered: bool = False
    error: str = ""
    is_own_error: bool = False
    has_effect: bool = False


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The link that broke, and the cause. ``detail`` is more about the cause, for an operator, and may be empty."""

    link: Link
    cause: Cause
    detail: str = ""


def stanza_trouble(link: Link, stanza: Stanza) -> Diagnosis | None:
    """Return why a stanza did not lead to what it should have, if it did not."""
    if not stanza.is_said:
        return Diagnosis(link, Cause.COMPONENT, stanza.component or "it is connected, and does not take up its errands")
    if stanza.error:
        cause = Cause.COMPONENT if stanza.is_own_error else Cause.XMPP_SERVER
        return Diagnosis(link, cause, f"refused: {stanza.error}")
    if not stanza.is_answered:
        return _unanswered(link, stanza)
    return None if stanza.has_effect else Diagnosis(link, Cause.COMPONENT, "it answers, and has stored nothing")


def _unanswered(link: Link, stanza: Stanza) -> Diagnosis:
    if stanza.has_effect:
        return Diagnosis(link, Cause.REPLY, "the component has carried it out")
    if stanza.component:
        return Diagnosis(link, Cause.COMPONENT, stanza.component)
    return Diagnosis(link, Cause.XMPP_SERVER, "it took the stanza, and did not hand it back")


@dataclass(frozen=True, slots=True)
class Push:
    """What became of a push: its attempt, its outcome, and our word for what gorush said. ``is_drained`` says that an
    operator stopped delivery.
    """

    has_attempt: bool = False
    outcome: str = ""
    code: str = ""
    latency_ms: int | None = None
    is_drained: bool = False


def push_trouble(push: Push) -> Diagnosis | None:
    """Return what is wrong with the push, if anything is."""
    if not push.has_attempt:
        return Diagnosis(Link.GORUSH, Cause.WORKER, NO_PUSH_IS_TRIED if push.is_drained else "nobody tries the push")
    if not push.outcome:
        return Diagnosis(Link.GORUSH, Cause.GORUSH, "it does not answer")
    if push.outcome != Attempt.Outcome.DELIVERED:
        return Diagnosis(Link.GORUSH, Cause.GORUSH, f"{push.outcome}: {push.code}")
    return None
