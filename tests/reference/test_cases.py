"""Cases that were sent to status-go's server: its answers and reports, its pushes, and their bodies at gorush."""

import json
from datetime import timedelta

import pytest
from django.conf import settings
from django.utils import timezone

from notifications.gateways.gorush import push_api
from notifications.messages import NotificationType, Push, PushRequest, app_key
from registrations.messages import RegistrationMessage, TokenType
from registrations.models import Registration
from tests.rig.conversation import EPHEMERAL, IDENTITIES, VECTORS, replies_to, say, to_server
from tests.rig.delivering import Process, RecordingGateway
from tests.rig.rows import make_registration, make_route
from waku_bridge.codec import wire
from waku_bridge.messages import MessageType, PushResponse, RegistrationError, RegistrationResponse

# Registrations --------------------------------------------------------------------------------------------------------

REGISTRATION_CASES = VECTORS["registration_cases"]["cases"]
SILENCE = None
MALFORMED = RegistrationError.MALFORMED_MESSAGE
STALE = RegistrationError.VERSION_MISMATCH
UNSUPPORTED = RegistrationError.UNSUPPORTED_TOKEN_TYPE
SUCCESS = RegistrationError.NONE

# Deliberate differences: our answer, and the reason.
OTHER_ANSWERS: dict[str, tuple[RegistrationError | None, str]] = {
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
    settings.CHECK_DEVICE_TOKENS = False  # tokens of the cases are words
    for number, case in enumerate(REGISTRATION_CASES):
        if case["reset_store_before"]:
            Registration.objects.all().delete()
        with subtests.test(case["name"]):
            # Errors are limited in a second, so each case comes a second after the one before.
            answer, name = _answer(case, seconds=number), case["name"]
            expected, _ = OTHER_ANSWERS.get(name, (RegistrationError(case["expect"][1]), ""))
            assert (None if answer is None else RegistrationError(answer.error)) == expected
            if name not in OTHER_ANSWERS:
                assert wire.serialize(answer)[1].hex() == case["response_protobuf"]


def test_every_listed_difference_is_one():
    for name, (answer, reason) in OTHER_ANSWERS.items():
        case = next(case for case in REGISTRATION_CASES if case["name"] == name)
        assert answer != RegistrationError(case["expect"][1]), reason


# Requests -------------------------------------------------------------------------------------------------------------

REQUEST_CASES = VECTORS["request_cases"]["cases"]
GORUSH_CASES = VECTORS["gorush_cases"]["cases"]

# Deliberate differences: [report, sent], and the reason.
OTHER_REPORTS = {
    "type_4_unknown_sent_unfiltered": ([True, 0], False, "a user who blocked an author gets no push from them"),
    "enabled_false_still_sent": ([True, 0], False, "a client that asks for no notifications gets none (spec intent)"),
}


def _request(case: dict) -> PushRequest:
    pn = bytes.fromhex(case["pn"])
    # PushNotificationRequest: requests = 1, message_id = 2.
    raw = b"\x0a" + _varint(len(pn)) + pn + b"\x12\x01m"
    return wire.parse(MessageType.REQUEST, raw)


def _varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128, number >> 7])


def _store(registration: RegistrationMessage, request: PushRequest) -> None:
    """Store the registration without the checks, as some of the cases would not pass them."""
    make_registration(
        public_key_hash=request.notifications[0].public_key_hash,
        installation_id=registration.installation_id,
        access_token=registration.access_token,
        route=make_route(
            device_token=registration.device_token,
            token_type=registration.token_type,
            app_topic=registration.app_topic,
        ),
        enabled=registration.enabled,
        block_mentions=registration.block_mentions,
        blocked_chat_list=list(registration.blocked_chat_list),
        muted_chat_list=list(registration.muted_chat_list),
        allowed_mentions_chat_list=list(registration.allowed_mentions_chat_list),
    )


@pytest.mark.django_db
@pytest.mark.parametrize("case", REQUEST_CASES, ids=lambda case: case["name"])
def test_reports_and_sends_like_status_go_except_where_listed(case):
    request = _request(case)
    if case["registration"]:
        _store(wire.parse_registration(bytes.fromhex(case["registration"])), request)
    process = Process(gateway := RecordingGateway())
    received_at = timezone.now() - timedelta(seconds=settings.REPLY_DEADLINE_SECONDS)
    say(to_server(wire.serialize(request)[1], MessageType.REQUEST, EPHEMERAL), now=received_at, process=process)
    process.process_backlog()  # success without an attempt is answered at the deadline
    [reply] = replies_to(EPHEMERAL)
    expected_report, expected_sent = case["expect"]["report"], case["expect"]["sent"]
    if case["name"] in OTHER_REPORTS:
        expected_report, expected_sent, _ = OTHER_REPORTS[case["name"]]
    assert bool(gateway.pushes) == expected_sent
    assert isinstance(reply.body, PushResponse)
    assert reply.body.message_id == b"m"
    assert [[r.success, r.error] for r in reply.body.reports] == ([expected_report] if expected_report else [])


TEXTS_2024 = {
    NotificationType.MESSAGE: "You have a new message",
    NotificationType.MENTION: "Someone mentioned you",
    NotificationType.REQUEST_TO_JOIN_COMMUNITY: "Someone requested to join a community you are an admin of",
}
# Fields that we add to status-go's body of 2024, or leave out of it, and the reason for each.
ADDED = {
    "notif_id",  # correlates later output of gorush
    "collapse_id",  # a repeat replaces the first push on the device
    "android",  # the same for Firebase
    *("content_available", "sound", "priority", "push_type"),  # status-go of 2026, for Apple
}


@pytest.mark.requirement("SN2")
@pytest.mark.parametrize(
    "case", [case for case in GORUSH_CASES if case["name"] != "platform_0"], ids=lambda case: case["name"]
)
def test_sends_gorush_the_body_that_status_go_sends(case, monkeypatch):
    monkeypatch.setattr(push_api, "TEXTS", TEXTS_2024)
    [theirs] = json.loads(case["body"])["notifications"]
    registration = wire.parse_registration(bytes.fromhex(case["registration"]))
    [notification] = _request(case).notifications
    push = Push(
        notification_id=1,
        attempt_number=1,
        app=app_key(registration.token_type, registration.app_topic),
        address=registration.device_token.encode(),
        type=notification.type,
        public_key_hash=notification.public_key_hash,
        chat_id=notification.chat_id,
        message=notification.message,
        collapse_id="c",
    )
    [ours] = json.loads(push_api.build_request(push_api.fit(push)[0]))["notifications"]
    ours = {name: value for name, value in ours.items() if name not in ADDED}
    ours["data"].pop("deepLink", None)
    if registration.token_type == TokenType.FIREBASE:
        ours["topic"] = ""  # for Firebase a topic is a broadcast, so we never send one
        theirs["topic"] = ""
    assert ours == theirs
