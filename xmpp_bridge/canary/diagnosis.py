"""Why a round trip stops, concluded from how far it got.

The facts are judged in the order of the chain, so that the first fault is named and not what follows from it.
"""

from dataclasses import dataclass
from typing import TypeAlias

from kit.canary.engine import Diagnosis
from notifications.canary import Push, push_trouble
from xmpp_bridge.models import CanaryRun

Link: TypeAlias = CanaryRun.Link
Cause: TypeAlias = CanaryRun.Cause


@dataclass(frozen=True, slots=True)
class Stanza:
    """What became of a stanza. ``component`` says what is wrong with the connection of the component, if anything is,
    and ``has_effect`` whether the tables show that the component carried the stanza out.
    """

    component: str = ""
    is_sent: bool = False
    is_answered: bool = False
    error: str = ""
    is_own_error: bool = False
    has_effect: bool = False


def diagnose(link: Link, stanza: Stanza) -> Diagnosis | None:
    """Return why a stanza did not lead to what it should have, if it did not."""
    if not stanza.is_sent:
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


def diagnose_push(push: Push) -> Diagnosis | None:
    """Return what is wrong with the push, if anything is."""
    if trouble := push_trouble(push):
        return Diagnosis(Link.GATEWAY, Cause.GATEWAY if trouble.is_of_gateway else Cause.WORKER, trouble.detail)
    return None
