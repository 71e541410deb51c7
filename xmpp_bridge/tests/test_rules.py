"""Whom we serve, what a push is answered with, and how long it is tried."""

from datetime import timedelta

import pytest

from notifications.messages import Grade
from xmpp_bridge.messages import Dialect, Kind, Origin, PushNotification, StanzaError
from xmpp_bridge.rules import Domains, Verdict, answer_to, time_to_live

NOT_FOUND = StanzaError("cancel", "item-not-found")
GONE = StanzaError("cancel", "gone", disabled_client="its client")
BUSY = StanzaError("wait", "resource-constraint")


def push(stanza: str = "message", dialect: Dialect = Dialect.DRAFT) -> PushNotification:
    origin = Origin(stanza, "1", "capulet.test", "push.montague.test")
    return PushNotification(dialect, origin, Grade.NORMAL, Kind.WAKE, client="its client")


@pytest.mark.parametrize(
    ("verdict", "iq", "message"),
    [
        (Verdict.ACCEPTED, None, None),
        (Verdict.MERGED, None, None),
        (Verdict.REPEATED, None, None),
        (Verdict.UNKNOWN, NOT_FOUND, NOT_FOUND),
        (Verdict.IGNORED, NOT_FOUND, None),
        (Verdict.GONE, GONE, GONE),
        (Verdict.GONE_BEFORE, NOT_FOUND, None),
        (Verdict.FORBIDDEN, StanzaError("auth", "forbidden"), StanzaError("auth", "forbidden")),
        (Verdict.REFUSED, StanzaError("cancel", "policy-violation"), StanzaError("cancel", "policy-violation")),
        (Verdict.BUSY_DOMAIN, BUSY, BUSY),
        (Verdict.BUSY_CALLS, BUSY, BUSY),
        (Verdict.FULL, BUSY, BUSY),
        (
            Verdict.NOT_STORED,
            StanzaError("wait", "internal-server-error"),
            StanzaError("wait", "internal-server-error"),
        ),
    ],
)
def test_what_a_push_is_answered_with(verdict: Verdict, iq: StanzaError | None, message: StanzaError | None) -> None:
    assert answer_to(push("iq"), verdict) == iq
    assert answer_to(push("message"), verdict) == message


@pytest.mark.parametrize(
    ("dialect", "answer"), [(Dialect.DRAFT, GONE), (Dialect.MOD_PUSH2, GONE), (Dialect.XEP0357, NOT_FOUND)]
)
def test_only_push_2_has_a_word_for_a_client_that_is_gone(dialect: Dialect, answer: StanzaError) -> None:
    assert answer_to(push(dialect=dialect), Verdict.GONE) == answer


@pytest.mark.parametrize(
    ("domains", "is_served"),
    [
        (Domains(), True),
        (Domains(denied={"evil.test"}), True),
        (Domains(denied={"capulet.test"}), False),
        (Domains(allowed={"capulet.test"}), True),
        (Domains(allowed={"montague.test"}), False),
        (Domains(denied={"capulet.test"}, allowed={"capulet.test"}), False),
        (Domains(denied={"evil.test"}, allowed={"montague.test"}), False),
    ],
)
def test_serves_all_domains_but_those_denied_or_only_those_allowed(domains: Domains, is_served: bool) -> None:
    assert domains.serve("capulet.test") is is_served


@pytest.mark.parametrize("grade", Grade)
def test_a_call_is_tried_for_half_a_minute_a_wake_up_for_an_hour_and_a_payload_for_a_day(grade: Grade) -> None:
    is_call = grade is Grade.VOIP
    assert time_to_live(grade, has_payload=True) == timedelta(seconds=30 if is_call else 86400)
    assert time_to_live(grade, has_payload=False) == timedelta(seconds=30 if is_call else 3600)
