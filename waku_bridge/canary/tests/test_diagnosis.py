import pytest

from notifications.canary import Push
from waku_bridge.canary.diagnosis import Cause, Facts, Link, diagnose

DECIDED = {"envelope": "processed"}
PUSHED = {"push": Push(has_attempt=True, outcome="delivered")}
UNANSWERED = {"push": Push(has_attempt=True)}
DRAINED = {"push": Push(is_drained=True)}
REFUSED = {"push": Push(has_attempt=True, outcome="config", code="tls")}


@pytest.mark.parametrize(
    ("answer", "facts", "link", "cause", "words"),
    [
        (Link.REGISTER_ANSWER, {}, Link.REGISTER_ANSWER, Cause.BRIDGE, ""),
        (Link.REQUEST_ANSWER, {}, Link.REQUEST_ANSWER, Cause.BRIDGE, ""),
        (Link.QUERY_ANSWER, {"envelope": "received"}, Link.QUERY_ANSWER, Cause.WORKER, "inbox"),
        (Link.QUERY_ANSWER, {"envelope": "pending_key"}, Link.QUERY_ANSWER, Cause.WORKER, "queue keys"),
        (Link.QUERY_ANSWER, {**DECIDED, "reason": "nothing_found"}, Link.QUERY_ANSWER, Cause.WORKER, "nothing_found"),
        (Link.REGISTER_ANSWER, {"envelope": "failed"}, Link.REGISTER_ANSWER, Cause.WORKER, "failed"),
        (Link.REGISTER_ANSWER, DECIDED, Link.REGISTER_ANSWER, Cause.WORKER, "no answer was written"),
        (Link.REGISTER_ANSWER, {**DECIDED, "reply": "pending"}, Link.REGISTER_ANSWER, Cause.REPLY, "outbox"),
        (Link.REGISTER_ANSWER, {**DECIDED, "reply": "published"}, Link.REGISTER_ANSWER, Cause.REPLY, "no store has it"),
        (Link.REQUEST_ANSWER, DECIDED, Link.GATEWAY, Cause.WORKER, "no worker tries"),
        (Link.REQUEST_ANSWER, {**DECIDED, **DRAINED}, Link.GATEWAY, Cause.WORKER, "an operator stopped"),
        (Link.REQUEST_ANSWER, {**DECIDED, **UNANSWERED}, Link.GATEWAY, Cause.GATEWAY, "does not answer"),
        (Link.REQUEST_ANSWER, {**DECIDED, **REFUSED}, Link.GATEWAY, Cause.GATEWAY, "config: tls"),
        (Link.REQUEST_ANSWER, {**DECIDED, **PUSHED}, Link.REQUEST_ANSWER, Cause.WORKER, "no answer was written"),
        (Link.REQUEST_ANSWER, {**DECIDED, **PUSHED, "reply": "pending"}, Link.REQUEST_ANSWER, Cause.REPLY, "outbox"),
    ],
)
def test_the_diagnosis_names_the_first_fault_of_the_chain(answer, facts, link, cause, words):
    found = diagnose(answer, Facts(**facts))
    assert (found.link, found.cause) == (link, cause)
    assert words in found.detail
