"""Registrations that were sent to status-go's server, and the bytes of its answers."""

from datetime import timedelta

import pytest
from django.utils import timezone

from registrations.models import Registration
from tests.conversation import IDENTITIES, VECTORS, replies_to, say, to_server
from waku_bridge.codec.bodies import serialize
from waku_bridge.messages import MessageType, RegistrationError, RegistrationResponse

CASES = VECTORS["registration_cases"]["cases"]
SILENCE = None
MALFORMED = RegistrationError.MALFORMED_MESSAGE
STALE = RegistrationError.VERSION_MISMATCH
UNSUPPORTED = RegistrationError.UNSUPPORTED_TOKEN_TYPE
SUCCESS = RegistrationError.NONE

# Deliberate differences: our answer, and the reason.
DIFFERENCES: dict[str, tuple[RegistrationError | None, str]] = {
    "too_short_ciphertext": (SILENCE, "undecryptable: an answer would let anybody make the server publish (spec)"),
    "garbage_ciphertext": (SILENCE, "undecryptable: no answer (spec)"),
    "encrypted_with_other_key": (SILENCE, "undecryptable: no answer (spec)"),
    "signer_mismatch": (SILENCE, "undecryptable: no answer (spec)"),
    "empty_plaintext": (MALFORMED, "a missing version is malformed (spec)"),
    "version_zero": (MALFORMED, "version 0 is malformed (spec)"),
    "version_zero_and_bad_installation": (MALFORMED, "version 0 is malformed (spec)"),
    "token_type_unknown_0": (UNSUPPORTED, "the spec has an error of its own for it"),
    "token_type_7_accepted": (UNSUPPORTED, "no gateway takes it, and gorush refuses whole requests over it"),
    "apn_without_topic_accepted": (MALFORMED, "Apple refuses a push without topic (spec)"),
    "same_version_again": (SUCCESS, "byte-identical repeat: the first answer may have been lost"),
    "unregister_same_version": (SUCCESS, "follows from token_type_7: that version was never stored here"),
    "register_older_version_after_rowless_unregister": (STALE, "a tombstone is kept also when nothing was registered"),
}


def _expected(case: dict) -> RegistrationError | None:
    return DIFFERENCES[case["name"]][0] if case["name"] in DIFFERENCES else RegistrationError(case["expect"][1])


def _answer(case: dict, *, seconds: int = 0) -> RegistrationResponse | None:
    signer = IDENTITIES[case["signer"]]
    before = len(replies_to(signer))
    now = timezone.now() + timedelta(seconds=seconds)
    say(to_server(bytes.fromhex(case["amm_payload"]), MessageType.REGISTRATION, signer), now=now)
    answers = [decoded.body for decoded in replies_to(signer)[before:]]
    assert len(answers) <= 1
    return answers[0] if answers else None


@pytest.mark.django_db
def test_answers_every_registration_like_status_go_except_where_listed(subtests, settings):
    settings.CHECK_DEVICE_TOKENS = False  # tokens of the cases are words; see the last test
    for number, case in enumerate(CASES):
        if case["reset_store_before"]:
            Registration.objects.all().delete()
        with subtests.test(case["name"]):
            # Errors are limited in a second, so each case comes a second after the one before.
            answer, expected = _answer(case, seconds=number), _expected(case)
            assert (None if answer is None else RegistrationError(answer.error)) == expected
            if case["name"] not in DIFFERENCES:
                assert serialize(answer)[1].hex() == case["response_protobuf"]


def test_every_listed_difference_is_one():
    for name, (answer, reason) in DIFFERENCES.items():
        case = next(case for case in CASES if case["name"] == name)
        assert answer != RegistrationError(case["expect"][1]), reason


@pytest.mark.django_db
def test_the_device_tokens_of_the_cases_are_none_that_firebase_makes():
    case = next(case for case in CASES if case["expect"][0] and case["name"] not in DIFFERENCES)
    assert _answer(case).error == MALFORMED
