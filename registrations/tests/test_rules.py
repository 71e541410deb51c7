"""Tests of the decisions about registrations, and of the order of the checks."""

from dataclasses import replace

import pytest

from registrations.messages import RegistrationMessage, TokenType, is_uuid
from registrations.rules import Acceptance, Known, Refusal, check_token_type, decide

UUID = "11111111-1111-4111-8111-111111111111"
NOTHING = Known()
FIREBASE_TOKEN = "fX3p-0Z1S7_Yk2qJ8hWv5u:APA91b" + "Zx_-" * 33 + "12"
APN_TOKEN = "0123456789abcdefABCDEF" * 2 + "0" * 20
VALID = RegistrationMessage(
    installation_id=UUID,
    version=5,
    token_type=TokenType.FIREBASE,
    device_token=FIREBASE_TOKEN,
    access_token=UUID,
    grant=b"verified elsewhere",
    enabled=True,
)
APPLE = {"token_type": TokenType.APN, "app_topic": "im.status", "device_token": APN_TOKEN}


def decided(message, known=NOTHING, *, grant_verified=True, strict=False):
    return decide(message, known, grant_verified=grant_verified, strict_version_check=strict)


@pytest.mark.requirement("SR2", "SR3", "SR4", "SR7", "SR8", "SR12")
@pytest.mark.parametrize(
    ("fields", "decision"),
    [
        ({}, Acceptance.REGISTER),
        (APPLE, Acceptance.REGISTER),
        ({"version": 1}, Acceptance.REGISTER),
        ({"version": 2**64 - 1}, Acceptance.REGISTER),
        ({"enabled": False}, Acceptance.REGISTER),
        ({"unregister": True}, Acceptance.UNREGISTER),
        ({"version": 0}, Refusal.MALFORMED),
        ({"installation_id": ""}, Refusal.MALFORMED),
        ({"installation_id": "no uuid"}, Refusal.MALFORMED),
        ({"access_token": ""}, Refusal.MALFORMED),
        ({"access_token": "no uuid"}, Refusal.MALFORMED),
        ({"device_token": ""}, Refusal.MALFORMED),
        ({"token_type": 0}, Refusal.UNSUPPORTED_TOKEN_TYPE),
        ({"token_type": 3}, Refusal.UNSUPPORTED_TOKEN_TYPE),
        ({"token_type": -1}, Refusal.UNSUPPORTED_TOKEN_TYPE),
        ({"token_type": 2**31 - 1}, Refusal.UNSUPPORTED_TOKEN_TYPE),
        (APPLE | {"app_topic": ""}, Refusal.BAD_APP_TOPIC),
    ],
)
def test_decisions_about_registrations_of_new_installations(fields, decision):
    assert decided(replace(VALID, **fields)) is decision


POSSIBLE = {
    **dict.fromkeys([APN_TOKEN, "0a" * 32, "0a" * 100], TokenType.APN),  # tokens of simulators have 160 characters
    **dict.fromkeys([FIREBASE_TOKEN, "x" * 100, "x" * 4096], TokenType.FIREBASE),
    "APA91b" + "x" * 134: TokenType.FIREBASE,  # the format before 2019, without an installation id
}
IMPOSSIBLE = {
    TokenType.APN: [
        *("0a" * 100 + "0", "0a" * 31 + "0", "e", FIREBASE_TOKEN, APN_TOKEN[:-1] + "g", APN_TOKEN + "\n"),
        APN_TOKEN[:-1] + "\u0660",  # a digit that is not ASCII
    ],
    TokenType.FIREBASE: [
        *("x" * 99, "x" * 4097, "e"),
        *(FIREBASE_TOKEN + more for more in (" ", "%", "é", "/../topics/all")),
    ],
}


@pytest.mark.parametrize(
    ("token", "kind", "decision"),
    [(token, kind, Acceptance.REGISTER) for token, kind in POSSIBLE.items()]
    + [(token, kind, Refusal.IMPLAUSIBLE_TOKEN) for kind, tokens in IMPOSSIBLE.items() for token in tokens],
)
def test_only_a_possible_token_of_apple_or_firebase_is_accepted(token, kind, decision):
    assert decided(replace(VALID, **APPLE | {"token_type": kind, "device_token": token})) is decision


def test_the_caller_defines_the_check_of_addresses():
    message = replace(VALID, device_token="an endpoint")
    decision = decide(message, NOTHING, grant_verified=True, strict_version_check=False, check_address=check_token_type)
    assert decision is Acceptance.REGISTER


@pytest.mark.parametrize(
    ("topic", "is_one"),
    [
        ("im.status.ethereum", True),
        ("im.status.Ethereum-PR.voip", True),
        ("x" * 255, True),
        ("x" * 256, False),
        ("x" * 4096, False),
        ("im.status ethereum", False),
        ("im.status\n", False),
        ("im.státus", False),
        ("im/status", False),
    ],
)
def test_only_a_possible_app_topic_is_accepted(topic, is_one):
    decision = Acceptance.REGISTER if is_one else Refusal.BAD_APP_TOPIC
    assert decided(replace(VALID, **APPLE | {"app_topic": topic})) is decision
    assert decided(replace(VALID, app_topic=topic)) is decision


@pytest.mark.requirement("SR5", "SR13")
@pytest.mark.parametrize(
    ("known", "strict", "decision"),
    [
        (Known(4), False, Acceptance.REGISTER),
        (Known(6), False, Refusal.STALE_VERSION),
        (Known(5, has_same_content=False), False, Refusal.STALE_VERSION),
        (Known(5, has_same_content=True), False, Acceptance.RETRANSMISSION),
        (Known(5, has_same_content=True), True, Refusal.STALE_VERSION),
        (Known(5, has_same_content=True, is_registered=False), False, Acceptance.REGISTER),  # it has expired
        (Known(6, has_same_content=True), False, Refusal.STALE_VERSION),
    ],
)
def test_a_version_must_be_higher_than_the_stored_one_unless_it_is_a_repetition(known, strict, decision):
    assert decided(VALID, known, strict=strict) is decision


# Each of these has the fault of its decision and all later faults. The first fault must decide.
ALL_LATER_FAULTS = {"access_token": "", "device_token": "", "token_type": 7}
IN_ORDER = [
    ("version missing", {"version": 0, "installation_id": ""} | ALL_LATER_FAULTS, 9, True, Refusal.MALFORMED),
    ("installation id", {"installation_id": ""} | ALL_LATER_FAULTS, 9, True, Refusal.MALFORMED),
    ("stale version", ALL_LATER_FAULTS, 9, True, Refusal.STALE_VERSION),
    ("version before grant", {}, 9, False, Refusal.STALE_VERSION),
    ("access token", ALL_LATER_FAULTS, 0, True, Refusal.MALFORMED),
    ("device token", {"device_token": "", "token_type": 7}, 0, True, Refusal.MALFORMED),
    ("grant", {}, 0, False, Refusal.MALFORMED),
    ("grant before token type", {"token_type": 7}, 0, False, Refusal.MALFORMED),
    ("token type", {"device_token": "e", "token_type": 7}, 0, True, Refusal.UNSUPPORTED_TOKEN_TYPE),
    ("shape of the token", {"device_token": "e", "app_topic": "a b"}, 0, True, Refusal.IMPLAUSIBLE_TOKEN),
]


@pytest.mark.requirement("SR5", "SR6")
@pytest.mark.parametrize(
    ("fields", "stored", "grant_verified", "decision"), [c[1:] for c in IN_ORDER], ids=[c[0] for c in IN_ORDER]
)
def test_the_first_fault_in_the_order_of_the_protocol_decides(fields, stored, grant_verified, decision):
    assert decided(replace(VALID, **fields), Known(stored), grant_verified=grant_verified) is decision


def test_unregistering_needs_neither_grant_nor_tokens_but_a_version_and_an_installation():
    bare = RegistrationMessage(UUID, version=5, unregister=True)
    assert decided(bare, grant_verified=False) is Acceptance.UNREGISTER
    assert decided(replace(bare, version=0), grant_verified=False) is Refusal.MALFORMED
    assert decided(replace(bare, installation_id="x"), grant_verified=False) is Refusal.MALFORMED
    assert decided(bare, Known(5), grant_verified=False) is Refusal.STALE_VERSION


DASHED = "11111111-1111-4111-8111-11111111111a"
UUIDS = [DASHED, DASHED.upper(), DASHED.replace("-", ""), "{" + DASHED + "}", "\n" + DASHED + "x", "uRn:UuId:" + DASHED]
NO_UUIDS = [
    DASHED + "\n",
    "{" + DASHED,
    "{" + DASHED.replace("-", "") + "}",
    "urn:uuid:" + DASHED.replace("-", ""),
    "urn:uuid:{" + DASHED + "}",
    "é" + DASHED + "}",  # é has two bytes, so it is 39 bytes long
    "é" + DASHED[1:] + "}",  # 38 bytes, but the first two are one character
    "urn:uu\u0131d:" + DASHED,  # a dotless i is another letter
    DASHED.replace("1", "\u0661", 1),  # an Arabic digit is not ASCII
    "{" + DASHED + "}\n",
    *(DASHED[:at] + other + DASHED[at + 1 :] for at in (8, 13, 18, 23) for other in "0_"),
    *(DASHED[:at] + other + DASHED[at + 1 :] for at in (0, 35) for other in "-gG@`/:"),
]


@pytest.mark.requirement("SR7")
@pytest.mark.parametrize(("text", "is_one"), [*((text, True) for text in UUIDS), *((text, False) for text in NO_UUIDS)])
def test_a_uuid_is_what_google_uuid_accepts(text, is_one):
    """The texts of `tests/vectors` come from google/uuid itself."""
    assert is_uuid(text) is is_one
