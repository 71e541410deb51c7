"""Diagnosis of a broken round trip: the cause by how far it got."""

import pytest

from kit.canary.engine import Diagnosis
from notifications.canary import Push
from xmpp_bridge.canary.diagnosis import Cause, Link, Stanza, diagnose, diagnose_push

SENT = {"is_sent": True}
ANSWERED = {"is_sent": True, "is_answered": True}


@pytest.mark.parametrize(
    ("stanza", "cause", "detail"),
    [
        (Stanza(component="no component is running"), Cause.COMPONENT, "no component is running"),
        (Stanza(), Cause.COMPONENT, "it is connected, but does not send queued stanzas"),
        (Stanza(**SENT), Cause.XMPP_SERVER, "it took the stanza, but did not route it back"),
        (Stanza(**SENT, component="the connection was lost"), Cause.COMPONENT, "the connection was lost"),
        (Stanza(**SENT, has_effect=True), Cause.REPLY, "the component has carried out the stanza"),
        (Stanza(**ANSWERED, error="service-unavailable"), Cause.XMPP_SERVER, "refused: service-unavailable"),
        (
            Stanza(**ANSWERED, error="internal-server-error", is_own_error=True),
            Cause.COMPONENT,
            "refused: internal-server-error",
        ),
        (Stanza(**ANSWERED), Cause.COMPONENT, "it answers, but has stored nothing"),
    ],
)
def test_names_why_a_stanza_had_no_effect(stanza: Stanza, cause: Cause, detail: str) -> None:
    assert diagnose(Link.PUSH, stanza) == Diagnosis(Link.PUSH, cause, detail)


def test_finds_nothing_wrong_with_a_stanza_that_was_answered_and_carried_out() -> None:
    assert diagnose(Link.PUSH, Stanza(**ANSWERED, has_effect=True)) is None


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
