"""Processing envelopes: every way they end, also when one of them is poisoned or two workers have the same."""

import os
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from coincurve import PrivateKey
from django.db import connection, transaction

from notifications.messages import NotificationType, PushNotification, PushRequest
from notifications.models import Notification, NotificationRequest
from registrations.encryption import Keyring, Purpose
from registrations.messages import RegistrationMessage, TokenType
from registrations.models import Registration as RegistrationRow
from registrations.models import Route, TopicKey
from registrations.rules import Refusal
from tests.conversation import CLIENT, EPHEMERAL, SENDER, STRANGER, put, replies_to, say, to_server
from waku_bridge import inbound, outbound
from waku_bridge.codec import topics
from waku_bridge.codec.bodies import serialize
from waku_bridge.codec.envelope import encode_payload, encode_query, encode_registration, encode_request
from waku_bridge.codec.grants import sign_grant
from waku_bridge.codec.keys import Identity
from waku_bridge.identity import server_identity
from waku_bridge.inbound import MESSAGE_TYPES, REGISTRATION_ERRORS
from waku_bridge.messages import (
    MessageType,
    PushResponse,
    Query,
    QueryResponse,
    RegistrationError,
    RegistrationResponse,
)
from waku_bridge.models import InboundEnvelope, OutboundReply
from waku_bridge.query_topics import CpuBudget, derive_newest

NOW = datetime(2026, 1, 1, tzinfo=UTC)
UUID = "11111111-1111-4111-8111-111111111111"
TOKEN = "c0ffee00-0000-4000-8000-000000000001"
State = InboundEnvelope.State


def registration(identity=CLIENT, **fields):
    message = RegistrationMessage(
        UUID,
        version=1,
        token_type=TokenType.FIREBASE,
        device_token="device-token",
        access_token=TOKEN,
        grant=sign_grant(identity.private_key, server_identity().pub33, TOKEN),
        enabled=True,
    )
    return encode_registration(
        replace(message, **fields),
        identity=identity,
        server=server_identity().pub33,
        timestamp_ns=time.time_ns(),
        random_bytes=os.urandom,
    ).message


def query(*hashes, signer=EPHEMERAL):
    hashes = hashes or (CLIENT.key_hash,)
    return encode_query(
        Query(hashes),
        signer=signer,
        topic_key=topics.symmetric_key(topics.query_name(hashes[0])),
        timestamp_ns=time.time_ns(),
        random_bytes=os.urandom,
    ).message


def push(identity=CLIENT, **fields):
    return replace(PushNotification(identity.key_hash, UUID, TOKEN, NotificationType.MESSAGE), **fields)


def request(*pushes, signer=EPHEMERAL, message_id=b"status message", timestamp_ns=0):
    return encode_request(
        PushRequest(message_id, pushes),
        signer=signer,
        server=server_identity().pub33,
        timestamp_ns=timestamp_ns or time.time_ns(),
        random_bytes=os.urandom,
    ).message


def reasons():
    rows = InboundEnvelope.objects.order_by("timestamp_ns")
    return [(row.state, row.reason) for row in rows]


def bodies(identity):
    return [reply.body for reply in replies_to(identity)]


# How an envelope ends -------------------------------------------------------------------------------------------------


def on_own_topic(payload):
    return replace(registration(), payload=payload)


def unsigned():
    return encode_payload(
        b"x",
        99,
        signer=CLIENT,
        topic_name=topics.personal_name(server_identity().pub33),
        timestamp_ns=time.time_ns(),
        random_bytes=os.urandom,
        recipient=server_identity().pub33,
    ).message


DROPPED = {
    "garbage": (lambda: on_own_topic(b"\x01" * 300), "not_decryptable"),
    "for somebody else": (
        lambda: replace(
            encode_registration(
                RegistrationMessage(UUID, 1),
                identity=CLIENT,
                server=STRANGER.pub33,
                timestamp_ns=1,
                random_bytes=os.urandom,
            ).message,
            content_topic=registration().content_topic,
        ),
        "not_decryptable",
    ),
    "query for a topic of nobody": (lambda: query(STRANGER.key_hash), "not_decryptable"),
    "unknown type": (unsigned, "unknown_type"),
    "registration sealed with another key": (
        lambda: to_server(b"\x01" * 100, MessageType.REGISTRATION, CLIENT),
        "body_not_decryptable",
    ),
    "response": (
        lambda: to_server(serialize(PushResponse(b"x"))[1], MessageType.RESPONSE, CLIENT),
        "not_for_servers",
    ),
    "request without message id": (lambda: request(push(), message_id=b""), "no_message_id"),
    "request with NUL": (lambda: request(push(installation_id="a\0b")), "malformed_body"),
    "request with a long key hash": (lambda: request(push(public_key_hash=os.urandom(65))), "too_large"),
    "request with a long installation id": (lambda: request(push(installation_id="x" * 257)), "too_large"),
    "request with a long message id": (lambda: request(push(), message_id=b"x" * 257), "too_large"),
    "request for too many": (lambda: request(*[push()] * 101), "too_large"),
    "text that is no UTF-8": (lambda: to_server(b"\x0a\x04\x22\x02\xff\xff\x12\x01m", 20, CLIENT), "malformed_body"),
    "text with a lone surrogate": (
        lambda: to_server(b"\x0a\x05\x22\x03\xed\xa0\x80\x12\x01m", MessageType.REQUEST, CLIENT),
        "malformed_body",
    ),
}


@pytest.mark.django_db
@pytest.mark.parametrize(("message", "reason"), DROPPED.values(), ids=DROPPED)
def test_drops_what_cannot_be_answered_with_its_reason_and_without_its_payload(message, reason):
    processed = say(message(), now=NOW)
    row = InboundEnvelope.objects.get()
    assert (row.state, row.reason, row.payload, row.processed_at) == (State.DROPPED, reason, None, NOW)
    assert (row.message_type, row.message_id) == (None, None)
    assert processed == inbound.Processed()
    assert not OutboundReply.objects.exists()


@pytest.mark.django_db
def test_a_registration_is_answered_to_its_author():
    processed = say(registration())
    [answer] = bodies(CLIENT)
    assert (answer.success, answer.error) == (True, RegistrationError.NONE)
    row = InboundEnvelope.objects.get()
    assert (row.state, row.reason, row.payload) == (State.PROCESSED, "", None)
    assert (row.message_type, len(row.message_id)) == (MessageType.REGISTRATION, 32)
    assert len(processed.reply_ids) == 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fields", "error", "reason"),
    [
        ({"version": 0}, RegistrationError.MALFORMED_MESSAGE, "malformed"),
        ({"token_type": 7}, RegistrationError.UNSUPPORTED_TOKEN_TYPE, "unsupported_token_type"),
        ({"grant": b"\x01" * 65}, RegistrationError.MALFORMED_MESSAGE, "malformed"),
        ({"installation_id": f"\0{UUID}\0"}, RegistrationError.MALFORMED_MESSAGE, "malformed"),
        ({"device_token": "x" * 4097}, RegistrationError.MALFORMED_MESSAGE, "malformed"),
    ],
)
def test_a_refused_registration_is_told_why(fields, error, reason):
    say(registration(**fields))
    [answer] = bodies(CLIENT)
    assert (answer.success, answer.error) == (False, error)
    assert reasons() == [(State.PROCESSED, reason)]
    assert not RegistrationRow.objects.exists()


@pytest.mark.django_db
def test_registration_and_query_in_one_batch_find_each_other():
    say(registration())  # the topic has to be known before a query can be read at all
    say(query(), registration(version=2))
    [answer] = bodies(EPHEMERAL)
    assert isinstance(answer, QueryResponse)
    assert [(info.version, info.access_token) for info in answer.info] == [(2, TOKEN)]


@pytest.mark.django_db
def test_a_registration_opens_its_query_topic_at_once():
    say(registration())
    say(query())
    assert len(bodies(EPHEMERAL)) == 1
    assert TopicKey.objects.get().key_encrypted is not None


@pytest.mark.django_db
def test_two_users_whose_query_topics_collide_are_both_found():
    """Topics are 4 bytes: of a million users some hundred pairs share one. These two really do."""
    users = [Identity(PrivateKey(number.to_bytes(32))) for number in (74_949, 85_646)]
    assert len({topics.content_topic(topics.query_name(user.key_hash)) for user in users}) == 1
    say(*[registration(user) for user in users])
    for user, asker in zip(users, (EPHEMERAL, SENDER), strict=True):
        say(query(user.key_hash, signer=asker))
        [answer] = bodies(asker)
        assert [info.public_key_hash for info in answer.info] == [user.key_hash]


@pytest.mark.django_db
def test_a_query_that_finds_nothing_is_silent():
    say(registration())
    say(registration(version=2, unregister=True))
    say(query())
    assert bodies(EPHEMERAL) == []
    assert reasons()[-1] == (State.PROCESSED, "nothing_found")


@pytest.mark.django_db
def test_a_query_asked_twice_for_one_key_tells_it_once():
    say(registration())
    say(query(CLIENT.key_hash, CLIENT.key_hash, STRANGER.key_hash))
    [answer] = bodies(EPHEMERAL)
    assert len(answer.info) == 1


@pytest.mark.django_db
def test_every_author_of_a_batch_gets_its_own_answer():
    say(registration(CLIENT), registration(STRANGER))
    say(request(push(message=b"m", type=9), signer=SENDER), request(push(STRANGER, access_token="x"), signer=EPHEMERAL))
    assert [type(body) for body in bodies(CLIENT)] == [RegistrationResponse]
    assert [type(body) for body in bodies(STRANGER)] == [RegistrationResponse]
    assert [report.error for body in bodies(EPHEMERAL) for report in body.reports] == [1]
    assert bodies(SENDER) == []  # waits for the first attempt


@pytest.mark.django_db
def test_the_answer_to_a_request_comes_when_it_is_settled():
    say(registration())
    processed = say(request(push()), now=NOW)
    [notification] = Notification.objects.all()
    assert processed.notification_ids == [notification.pk]
    assert processed.waiting_request_ids == [notification.request_id]
    assert outbound.answer_requests(processed.waiting_request_ids, now=NOW) == []
    assert len(outbound.answer_requests(processed.waiting_request_ids, now=NOW + timedelta(seconds=2))) == 1
    [answer] = bodies(EPHEMERAL)
    assert (answer.message_id, [report.success for report in answer.reports]) == (b"status message", [True])


@pytest.mark.django_db
def test_unregistering_withdraws_what_waits_and_drops_its_payload():
    say(registration())
    say(request(push(message=b"sealed", chat_id=b"chat")))
    say(registration(version=2, unregister=True))
    row = Notification.objects.get()
    assert (row.state, row.message, row.chat_id, row.route) == (Notification.State.WITHDRAWN, None, None, None)
    assert not Route.objects.exists()


# Twice ----------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_processing_again_does_nothing():
    hashes = put(registration(), registration(STRANGER))
    assert len(inbound.process(hashes, now=NOW).reply_ids) == 2
    assert inbound.process(hashes, now=NOW) == inbound.Processed()
    assert OutboundReply.objects.count() == 2


@pytest.mark.django_db
def test_the_same_new_installation_twice_in_a_batch_needs_no_second_try(caplog):
    processed = say(registration(), registration(version=2))
    assert len(processed.reply_ids) == 2
    assert "batch" not in caplog.text
    assert RegistrationRow.objects.get().version == 2


@pytest.mark.django_db
def test_the_same_request_in_two_envelopes_of_a_batch_needs_no_second_try(caplog):
    say(registration())
    twins = [request(push(), timestamp_ns=number) for number in (1, 2)]  # signatures repeat, so ids do
    processed = say(*twins)
    assert len(processed.notification_ids) == len(processed.waiting_request_ids) == 1
    assert "batch" not in caplog.text
    assert NotificationRequest.objects.count() == 1


def in_threads(*works):
    results, start = [None] * len(works), threading.Barrier(len(works), timeout=10)

    def run(position, work):
        start.wait()
        try:
            results[position] = work()
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    return results


@pytest.mark.django_db(transaction=True)
def test_two_workers_with_the_same_envelopes_answer_each_once():
    hashes = put(*(registration(version=version) for version in range(1, 9)))
    first, second = in_threads(*[lambda: inbound.process(hashes, now=NOW)] * 2)
    left = inbound.process(hashes, now=NOW)
    assert len(first.reply_ids) + len(second.reply_ids) + len(left.reply_ids) == 8
    assert OutboundReply.objects.count() == 8


@pytest.mark.django_db(transaction=True)
def test_two_workers_with_the_same_request_deliver_once():
    say(registration())
    batches = [put(request(push(), timestamp_ns=number)) for number in (1, 2)]
    results = in_threads(*(lambda hashes=hashes: inbound.process(hashes, now=NOW) for hashes in batches))
    assert sum(len(processed.notification_ids) for processed in results) == 1
    assert {state for state, _ in reasons()} == {State.PROCESSED}


@pytest.mark.django_db(transaction=True)
def test_a_batch_that_collides_with_another_one_is_repeated_and_not_lost(caplog):
    """Another worker stores the same new installation between our look and our write."""
    first = put(registration(version=1))
    second = put(registration(version=2))
    has_written = threading.Event()

    def slow():
        with transaction.atomic():
            RegistrationRow.objects.create(
                public_key_hash=CLIENT.key_hash,
                installation_id=UUID,
                version=1,
                state=RegistrationRow.State.UNREGISTERED,
                content_digest=b"x",
                created_at=NOW,
                updated_at=NOW,
            )
            has_written.set()
            threading.Event().wait(0.5)

    def quick():
        has_written.wait(10)
        return inbound.process([*first, *second], now=NOW)

    _, processed = in_threads(slow, quick)
    assert len(processed.reply_ids) == 2
    assert {state for state, _ in reasons()} == {State.PROCESSED}
    assert "batch_collided" in caplog.text
    assert RegistrationRow.objects.get().version == 2


# Poison ---------------------------------------------------------------------------------------------------------------


def poison():
    """A query for a registration whose token does not decrypt: nobody can answer it."""
    say(registration(STRANGER))
    derive_newest(budget=CpuBudget(0, 60))
    sealed = Keyring([b"\x77" * 32]).encrypt(Purpose.ACCESS_TOKEN, TOKEN.encode())
    RegistrationRow.objects.update(access_token_encrypted=sealed)
    return query(STRANGER.key_hash, signer=SENDER)


@pytest.mark.django_db
@pytest.mark.parametrize("position", [0, 3, 6])
def test_a_poisoned_envelope_is_set_aside_with_its_payload_and_its_neighbours_are_processed(position):
    messages = [registration(version=version) for version in range(1, 7)]
    messages.insert(position, poison())
    hashes = put(*messages, now=NOW)
    processed = inbound.process(hashes, now=NOW)
    assert len(processed.reply_ids) == 6
    failed = InboundEnvelope.objects.get(state=State.FAILED)
    assert (failed.reason, failed.payload is None, failed.processed_at) == ("DecryptionError", False, NOW)
    assert RegistrationRow.objects.get(public_key_hash=CLIENT.key_hash).version == 6
    assert inbound.process(hashes, now=NOW) == inbound.Processed()


@pytest.mark.django_db
def test_a_poisoned_envelope_costs_its_batch_few_transactions(django_assert_max_num_queries):
    hashes = put(*(registration(version=version) for version in range(1, 33)), poison())
    with django_assert_max_num_queries(500):
        inbound.process(hashes, now=NOW)
    assert InboundEnvelope.objects.filter(state=State.FAILED).count() == 1


@pytest.mark.django_db
def test_a_fault_says_neither_token_nor_payload(caplog):
    say(poison())
    assert "envelope_failed" in caplog.text
    assert TOKEN not in caplog.text
    assert "device-token" not in caplog.text


@pytest.mark.django_db
def test_a_topic_key_that_does_not_decrypt_stops_nobody():
    say(registration())
    say(query())
    TopicKey.objects.update(key_encrypted=Keyring([b"\x77" * 32]).encrypt(Purpose.TOPIC_KEY, b"k" * 32))
    say(query(signer=SENDER), registration(STRANGER))
    assert len(bodies(SENDER)) == len(bodies(STRANGER)) == 1


@pytest.mark.django_db
def test_a_value_too_large_for_an_index_is_a_fault_of_its_envelope_and_no_outage():
    """PostgreSQL's error for it is an OperationalError to Django; repeating the batch would never help."""
    say(registration())
    with connection.cursor() as cursor:
        cursor.execute("CREATE INDEX too_small ON notifications_notification (message)")
    processed = say(request(push(message=os.urandom(5000))), registration(STRANGER))
    assert len(processed.reply_ids) == 1
    assert (State.FAILED, "OperationalError") in reasons()


# Tables ---------------------------------------------------------------------------------------------------------------


def test_every_refusal_has_its_wire_code():
    assert set(REGISTRATION_ERRORS) == set(Refusal)
    assert len(set(REGISTRATION_ERRORS.values())) == len(Refusal)


def test_what_is_for_servers_has_its_message_type():
    assert set(MESSAGE_TYPES.values()) == {MessageType.REGISTRATION, MessageType.QUERY, MessageType.REQUEST}


def test_every_message_type_can_be_stored():
    assert {choice.value for choice in InboundEnvelope.Types} == {int(message_type) for message_type in MessageType}
