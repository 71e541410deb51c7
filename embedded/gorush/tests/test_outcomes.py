from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedded.gorush.outcomes import DELIVERED, Answer, Outcome, Platform, Refusal, decide

BUSY_IOS, BUSY_ANDROID = "ServiceUnavailable", "The service is currently unavailable."


@pytest.mark.parametrize(
    ("token", "ios", "android"),
    [
        ("dead-1", "Unregistered", "Requested entity was not found."),
        ("bad-1", "BadDeviceToken", "The registration token is not a valid FCM registration token"),
        ("wrong-1", "DeviceTokenNotForTopic", "SenderId mismatch"),
        ("config-1", "InvalidProviderToken", "Permission 'cloudmessaging.messages.create' denied on resource"),
        ("big-1", "PayloadTooLarge", "Android message is too big"),
        ("quota-1", "TooManyRequests", "Quota exceeded for quota metric 'Send requests'"),
        ("busy-1", BUSY_IOS, BUSY_ANDROID),
    ],
)
def test_refuses_with_the_error_texts_of_each_platform(token, ios, android):
    assert decide(token, Platform.IOS, 0).error == ios
    assert decide(token, Platform.ANDROID, 0).error == android


@pytest.mark.parametrize(
    "token", ["ok-1", "", "deadbeef", "dead", "d6f3a9", "APA91b:x-y", "slowly", "flaky-1", "DEAD-1"]
)
def test_delivers_every_other_token(token):
    assert decide(token, Platform.IOS, 0) is DELIVERED


@pytest.mark.parametrize(
    ("token", "outcome"),
    [
        ("hang-1", Outcome(is_sent=False, answer=Answer.HANG)),
        ("500-1", Outcome(is_sent=False, answer=Answer.EMPTY_500)),
        ("garbage-1", Outcome(is_sent=False, answer=Answer.GARBAGE)),
        ("cut-1", Outcome(answer=Answer.CUT)),
        ("slow250-x", Outcome(delay_ms=250)),
        ("slow250-dead-x", Outcome(error="Unregistered", refusal=Refusal.DEAD, delay_ms=250)),
        ("slow1-slow2-cut-x", Outcome(answer=Answer.CUT, delay_ms=3)),
    ],
)
def test_the_token_decides_the_answer_to_the_request(token, outcome):
    assert decide(token, Platform.IOS, 0) == outcome


@pytest.mark.parametrize("fate", ["", *(f"{refusal.name.lower()}-" for refusal in Refusal), "cut-", "flaky2-"])
def test_a_token_of_apple_may_have_its_prefix_in_hex(fate):
    token = fate.encode().hex() + "6d2d" * 16
    for earlier_tries in range(3):
        expected = decide(f"{fate}x", Platform.IOS, earlier_tries)
        assert replace(decide(token, Platform.IOS, earlier_tries), error="") == replace(expected, error="")


def test_a_delay_in_hex_comes_before_the_rest():
    token = b"slow250-slow1-naming-".hex() + "0" * 64
    outcome = decide(token, Platform.IOS, 0)
    assert (outcome.delay_ms, outcome.refusal, token in outcome.error) == (251, Refusal.NAMING, True)


@pytest.mark.parametrize(("earlier_tries", "error"), [(0, BUSY_IOS), (1, BUSY_IOS), (2, ""), (3, "")])
def test_a_flaky_token_is_delivered_after_its_failures(earlier_tries, error):
    assert decide("flaky2-x", Platform.IOS, earlier_tries).error == error


def test_every_refusal_has_a_prefix_and_two_texts():
    for refusal in Refusal:
        for platform in (Platform.IOS, Platform.ANDROID):
            outcome = decide(f"{refusal.name.lower()}-x", platform, 0)
            assert outcome.error == refusal.text(platform, f"{refusal.name.lower()}-x") != ""
            assert outcome.refusal is refusal


@pytest.mark.parametrize("token", ["lost-x", "reset-x"])
@pytest.mark.parametrize(("platform", "sends"), [(Platform.IOS, 1), (Platform.ANDROID, 5)])
def test_an_answer_that_got_lost_leaves_an_accepted_push(token, platform, sends):
    outcome = decide(token, platform, 0)
    assert (outcome.upstream_error, outcome.sends) == ("", sends)
    assert (token in outcome.error) is (platform is Platform.IOS)


@given(st.text(), st.sampled_from([Platform.IOS, Platform.ANDROID]), st.integers(0, 9))
def test_decides_for_any_token(token, platform, earlier_tries):
    assert isinstance(decide(token, platform, earlier_tries), Outcome)
