import pytest

from waku_bridge.client import Accepted, Ignored, LookedUp, Outcome, Reason, Refused
from waku_bridge.client.labels import OUTCOMES, REFUSALS, UNREMARKABLE, words
from waku_bridge.messages import RegistrationError

SERVER = b"\x02" + b"\xab" * 32


def test_every_refusal_and_every_outcome_has_a_text():
    assert set(REFUSALS) == set(RegistrationError) - {RegistrationError.NONE}
    assert set(OUTCOMES) == set(Outcome)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Accepted(SERVER, 3, is_registered=True), "version 3 accepted by 02ababababab…: registered"),
        (Refused(SERVER, 3, 99, is_final=False), "version 3 refused by 02ababababab…: error 99"),
        (Ignored(Reason.BAD_GRANT, "/t", SERVER), "not accepted: bad_grant signed by 02ababababab…"),
        (LookedUp(SERVER, 1), ""),
    ],
)
def test_each_event_has_a_line(event, text):
    assert words(event) == text


@pytest.mark.parametrize("reason", Reason)
def test_every_ignored_message_has_a_line_with_its_reason_unless_it_is_for_others(reason):
    assert (reason in words(Ignored(reason, "/t"))) == (reason not in UNREMARKABLE)
