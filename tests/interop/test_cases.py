"""The shared table of cases: the verdict of our gateway, and the pushes that Apple and Google received."""

import pytest

from notifications.gateways.gorush.sending.push_api import device_token
from tests.interop.cases import CASES, Case
from tests.rig.peers import Server, new_push, send


@pytest.mark.parametrize("case", CASES, ids=str)
def test_our_verdict_and_the_pushes_received(server: Server, case: Case) -> None:
    push = new_push(case.token_type, case.fate, message=bytes(case.message_size))
    result = send([server.url], push, timeout_seconds=case.timeout_seconds)
    assert (result.outcome, result.code, result.is_guarded) == (case.outcome, case.code, case.is_guarded)
    received = server.pushes_to(device_token(push), at_least=case.accepted + case.refused)
    errors = [one["error"] for one in received]
    assert (errors.count(""), len(errors) - errors.count("")) == (case.accepted, case.refused)
    # The Firebase SDK's repetitions have the same id, so on the phone they replace each other.
    assert {one["collapse_id"] for one in received} == {push.collapse_id}
