"""Diagnosis of a broken round trip: the cause by how far it got."""

import pytest

from kit.canary.engine import Diagnosis
from notifications.canary import Push
from xmpp_bridge.canary.diagnosis import Cause, Link, diagnose, diagnose_push
from xmpp_bridge.models import CanaryStanza
from xmpp_bridge.tests.talking import T0

QUEUED = CanaryStanza()
SENT = CanaryStanza(sent_at=T0)
ANSWERED = CanaryStanza(sent_at=T0, answered_at=T0)
REFUSED = CanaryStanza(sent_at=T0, answered_at=T0, error="service-unavailable")
FAILED = CanaryStanza(sent_at=T0, answered_at=T0, error="internal-server-error", is_own_error=True)


@pytest.mark.parametrize(
    ("stanza", "component", "has_effect", "cause", "detail"),
    [
        (QUEUED, "no component is running", False, Cause.COMPONENT, "no component is running"),
        (QUEUED, "", False, Cause.COMPONENT, "it is connected, but does not send queued stanzas"),
        (SENT, "", False, Cause.XMPP_SERVER, "it took the stanza, but did not route it back"),
        (SENT, "the connection was lost", False, Cause.COMPONENT, "the connection was lost"),
        (SENT, "", True, Cause.REPLY, "the component has carried out the stanza"),
        (REFUSED, "", False, Cause.XMPP_SERVER, "refused: service-unavailable"),
        (FAILED, "", False, Cause.COMPONENT, "refused: internal-server-error"),
        (ANSWERED, "", False, Cause.COMPONENT, "it answers, but has stored nothing"),
    ],
)
def test_names_why_a_stanza_had_no_effect(
    stanza: CanaryStanza, component: str, has_effect: bool, cause: Cause, detail: str
) -> None:
    shown = diagnose(Link.PUSH, stanza, component=component, has_effect=has_effect)
    assert shown == Diagnosis(Link.PUSH, cause, detail)


def test_finds_nothing_wrong_with_a_stanza_that_was_answered_and_carried_out() -> None:
    assert diagnose(Link.PUSH, ANSWERED, component="", has_effect=True) is None


@pytest.mark.parametrize(
    ("push", "cause", "detail"),
    [
        (Push(), Cause.WORKER, "no worker tries the push"),
        (Push(has_attempt=True), Cause.GATEWAY, "it does not answer"),
        (Push(has_attempt=True, outcome="transient", code="http_500"), Cause.GATEWAY, "transient: http_500"),
    ],
)
def test_names_why_a_push_does_not_arrive_at_gorush(push: Push, cause: Cause, detail: str) -> None:
    assert diagnose_push(push) == Diagnosis(Link.GATEWAY, cause, detail)


def test_finds_nothing_wrong_with_a_push_that_gorush_took() -> None:
    assert diagnose_push(Push(has_attempt=True, outcome="delivered")) is None
