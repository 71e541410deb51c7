"""Diagnosis of a broken round trip: its cause, concluded from how far the round trip got.

The facts are judged in the order of the chain, so that the diagnosis names the first fault and not its consequences.
"""

from typing import TypeAlias

from kit.canary.engine import Diagnosis
from notifications.canary import Push, push_trouble
from xmpp_bridge.models import CanaryRun, CanaryStanza

Link: TypeAlias = CanaryRun.Link
Cause: TypeAlias = CanaryRun.Cause


def diagnose(link: Link, stanza: CanaryStanza, *, component: str, has_effect: bool) -> Diagnosis | None:
    """Return why a stanza did not have its effect, or None if it had.

    ``component`` names the fault of the component's connection, and is empty when the component is connected.
    ``has_effect`` says whether the tables show that the component carried the stanza out.
    """
    if not stanza.sent_at:
        return Diagnosis(link, Cause.COMPONENT, component or "it is connected, but does not send queued stanzas")
    if stanza.error:
        cause = Cause.COMPONENT if stanza.is_own_error else Cause.XMPP_SERVER
        return Diagnosis(link, cause, f"refused: {stanza.error}")
    if not stanza.answered_at:
        return _unanswered(link, component, has_effect=has_effect)
    return None if has_effect else Diagnosis(link, Cause.COMPONENT, "it answers, but has stored nothing")


def _unanswered(link: Link, component: str, *, has_effect: bool) -> Diagnosis:
    if has_effect:
        return Diagnosis(link, Cause.REPLY, "the component has carried out the stanza")
    if component:
        return Diagnosis(link, Cause.COMPONENT, component)
    return Diagnosis(link, Cause.XMPP_SERVER, "it took the stanza, but did not route it back")


def diagnose_push(push: Push) -> Diagnosis | None:
    """Return why the gateway did not take the push, or None if it did."""
    if trouble := push_trouble(push):
        return Diagnosis(Link.GATEWAY, Cause.GATEWAY if trouble.is_of_gateway else Cause.WORKER, trouble.detail)
    return None
