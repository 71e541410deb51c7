"""Requests that were sent to status-go's server: its reports, its pushes, and their bodies at gorush."""

import json
from datetime import timedelta

import pytest
from django.conf import settings
from django.utils import timezone

from notifications.gateways.gorush.sending import push_api
from notifications.messages import NotificationType, Push, PushRequest, channel_key
from notifications.models import Notification
from registrations import token_types
from registrations.messages import RegistrationMessage, TokenType
from registrations.models import Registration
from tests.batches import Process
from tests.conversation import EPHEMERAL, VECTORS, replies_to, say, to_server
from tests.delivering import RecordingGateway
from tests.factories import make_registration, make_route
from waku_bridge.codec import bodies
from waku_bridge.messages import MessageType, PushResponse

REQUEST_CASES = VECTORS["request_cases"]["cases"]
GORUSH_CASES = VECTORS["gorush_cases"]["cases"]

# Deliberate differences: [report, sent], and the reason.
DIFFERENCES = {
    "type_4_unknown_sent_unfiltered": (
        [True, 0],
        False,
        "a user who blocked an author gets no push of any type from them",
    ),
    "enabled_false_still_sent": ([True, 0], False, "a client that asks for no notifications gets none (spec intent)"),
}


def _request(case: dict) -> PushRequest:
    pn = bytes.fromhex(case["pn"])
    # PushNotificationRequest: requests = 1, message_id = 2.
    raw = b"\x0a" + _varint(len(pn)) + pn + b"\x12\x01m"
    return bodies.parse(MessageType.REQUEST, raw)


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
        _store(bodies.parse_registration(bytes.fromhex(case["registration"])), request)
    process = Process(gateway := RecordingGateway())
    received_at = timezone.now() - timedelta(seconds=settings.REPLY_DEADLINE_SECONDS)
    say(to_server(bodies.serialize(request)[1], MessageType.REQUEST, EPHEMERAL), now=received_at, process=process)
    process.process_backlog()  # success without an attempt is answered at the deadline
    [reply] = replies_to(EPHEMERAL)
    expected_report, expected_sent = case["expect"]["report"], case["expect"]["sent"]
    if case["name"] in DIFFERENCES:
        expected_report, expected_sent, _ = DIFFERENCES[case["name"]]
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
    registration = bodies.parse_registration(bytes.fromhex(case["registration"]))
    [notification] = _request(case).notifications
    push = Push(
        notification_id=1,
        attempt_number=1,
        channel=channel_key(registration.token_type, registration.app_topic),
        address=registration.device_token.encode(),
        type=notification.type,
        public_key_hash=notification.public_key_hash,
        chat_id=notification.chat_id,
        message=notification.message,
        collapse_id="c",
    )
    [ours] = json.loads(push_api.build_request(push))["notifications"]
    ours = {name: value for name, value in ours.items() if name not in ADDED}
    ours["data"].pop("deepLink", None)
    if registration.token_type == TokenType.FIREBASE:
        ours["topic"] = ""  # for Firebase a topic is a broadcast, so we never send one
        theirs["topic"] = ""
    assert ours == theirs


@pytest.mark.django_db
def test_never_lets_a_platform_in_that_gorush_refuses():
    """In status-go's case `platform_0`, a registration with an unknown token type is not stored."""
    assert not Registration.objects.exists()
    assert [kind.number for kind in token_types.kinds()] == [1, 2]
    assert not Notification.objects.exists()
