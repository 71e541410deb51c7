"""Processing of envelopes: each way in which they end, also a poisoned one, and one that two workers have."""

import contextlib
import os
import threading
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from coincurve import PrivateKey
from django.db import IntegrityError, connection, transaction
from django.db.models import F
from django.utils import timezone

from kit.batches.batch import Batch
from kit.buckets.bucket import Buckets
from notifications.messages import Outcome
from notifications.models import Notification, NotificationRequest
from registrations.encryption import DecryptionError, Keyring, Purpose
from registrations.messages import TokenType
from registrations.models import Registration as RegistrationRow
from registrations.models import Route
from registrations.rules import Refusal
from tests.rig.conversation import (
    CLIENT,
    EPHEMERAL,
    OUTSIDER,
    SENDER,
    TOKEN,
    UUID,
    anybody,
    push,
    put,
    query,
    registration,
    replies_to,
    request,
    say,
    to_server,
)
from tests.rig.delivering import Process, RecordingGateway
from tests.rig.rows import apn_token, delete_all
from tests.rig.statements import at_once, beside
from waku_bridge.codec import wire
from waku_bridge.codec.keys import Identity
from waku_bridge.codec.wire import message_hash, serialize
from waku_bridge.inbox import inbox, processing
from waku_bridge.inbox.processing import MESSAGE_TYPES, REGISTRATION_ERRORS
from waku_bridge.messages import (
    MessageType,
    PushResponse,
    QueryResponse,
    RegistrationError,
    RegistrationResponse,
)
from waku_bridge.models import EnvelopeFault, InboundEnvelope, OpenEnvelope, OutboundReply
from waku_bridge.query_topics import CpuBudget, derive_newest

NOW = datetime(2026, 1, 1, tzinfo=UTC)
APPLE = {"token_type": TokenType.APN, "device_token": apn_token(), "app_topic": "im.status"}
State = InboundEnvelope.State
pytestmark = pytest.mark.django_db


def reasons():
    rows = InboundEnvelope.objects.order_by("timestamp_ns")
    return [(row.state, row.reason) for row in rows]


def bodies(identity):
    return [reply.body for reply in replies_to(identity)]


# How an envelope ends -------------------------------------------------------------------------------------------------


def on_own_topic(payload):
    return replace(registration(), payload=payload)


DROPPED = {
    "garbage": (lambda: on_own_topic(b"\x01" * 300), "not_decryptable"),
    "query for a topic of nobody": (lambda: query(OUTSIDER.key_hash), "not_decryptable"),
    "unknown type": (lambda: to_server(b"x", 99, CLIENT), "unknown_type"),
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
    "text that is no UTF-8": (lambda: to_server(b"\x0a\x04\x22\x02\xff\xff\x12\x01m", 20, CLIENT), "malformed_body"),
}


@pytest.mark.requirement("SR10")
@pytest.mark.parametrize(("message", "reason"), DROPPED.values(), ids=DROPPED)
def test_a_message_without_an_answer_is_dropped_with_a_reason_and_without_its_payload(message, reason):
    say(message(), now=NOW)
    row = InboundEnvelope.objects.get()
    assert (row.state, row.reason, row.payload, row.processed_at) == (State.DROPPED, reason, None, NOW)
    assert (row.message_type, row.message_id) == (None, None)
    assert not OutboundReply.objects.exists()
    assert not NotificationRequest.objects.exists()
    assert not RegistrationRow.objects.exists()


@pytest.mark.requirement("SR11", "SR12", "SR15")
@pytest.mark.parametrize(
    ("fields", "error", "reason"),
    [
        ({}, RegistrationError.NONE, ""),
        ({"version": 0}, RegistrationError.MALFORMED_MESSAGE, "malformed"),
        ({"token_type": 7}, RegistrationError.UNSUPPORTED_TOKEN_TYPE, "unsupported_token_type"),
        ({"grant": b"\x01" * 65}, RegistrationError.MALFORMED_MESSAGE, "malformed"),
        ({"installation_id": f"\0{UUID}\0"}, RegistrationError.MALFORMED_MESSAGE, "malformed"),
        ({"device_token": "e"}, RegistrationError.MALFORMED_MESSAGE, "implausible_token"),
        (APPLE | {"app_topic": ""}, RegistrationError.MALFORMED_MESSAGE, "bad_app_topic"),
    ],
)
def test_a_registration_is_answered_to_its_author_with_the_reason_of_a_refusal(fields, error, reason):
    say(registration(**fields))
    [answer] = bodies(CLIENT)
    assert (answer.success, answer.error) == (not error, error)
    row = InboundEnvelope.objects.get()
    assert (row.state, row.reason, row.payload) == (State.PROCESSED, reason, None)
    assert (row.message_type, len(row.message_id)) == (MessageType.REGISTRATION, 32)
    assert OutboundReply.objects.count() == 1
    assert RegistrationRow.objects.exists() is not bool(error)


def malformed(identity, version=1):
    return registration(identity, device_token="e", version=version)


@pytest.fixture
def proven():
    """Make a client to whose phone something was delivered."""
    process = say(registration(), now=NOW)
    Route.objects.update(delivered_digest=F("address_digest"))
    delete_all(OutboundReply)
    return process


def test_the_owner_of_a_proven_address_gets_an_error_beside_outsiders_who_get_few(proven):
    say(*(malformed(anybody()) for _ in range(100)), malformed(CLIENT, version=2), now=NOW, process=proven)
    rows = OutboundReply.objects.values_list("is_discarded", "needs_confirmation")
    assert Counter(rows) == {(False, True): 1, (True, False): 30}
    assert [body.error for body in bodies(CLIENT)] == [RegistrationError.MALFORMED_MESSAGE]
    assert [reason for _, reason in reasons()].count("implausible_token") == 101


def test_a_query_finds_a_registration_of_the_same_batch():
    say(registration())  # the topic must be registered before a query on it can be opened
    say(query(), registration(version=2))
    [answer] = bodies(EPHEMERAL)
    assert isinstance(answer, QueryResponse)
    assert [(info.version, info.access_token) for info in answer.info] == [(2, TOKEN)]
    row = OutboundReply.objects.get(message_type=MessageType.QUERY_RESPONSE)
    assert (row.needs_confirmation, row.is_discarded) == (False, False)


def test_two_users_whose_query_topics_collide_are_both_found():
    """Topics have 4 bytes: among a million users some hundred pairs share one. These two keys really do."""
    users = [Identity(PrivateKey(number.to_bytes(32))) for number in (74_949, 85_646)]
    assert len({wire.content_topic(wire.query_name(user.key_hash)) for user in users}) == 1
    say(*[registration(user) for user in users])
    for user, asker in zip(users, (EPHEMERAL, SENDER), strict=True):
        say(query(user.key_hash, signer=asker))
        [answer] = bodies(asker)
        assert [info.public_key_hash for info in answer.info] == [user.key_hash]


@pytest.mark.requirement("SQ3")
def test_a_query_that_finds_nothing_gets_no_answer():
    say(registration())
    say(registration(version=2, unregister=True))
    say(query())
    assert bodies(EPHEMERAL) == []
    assert reasons()[-1] == (State.PROCESSED, "nothing_found")


def test_a_query_that_names_a_key_twice_gets_its_installations_once():
    say(registration())
    say(query(CLIENT.key_hash, CLIENT.key_hash, OUTSIDER.key_hash))
    assert [len(answer.info) for answer in bodies(EPHEMERAL)] == [1]


def test_every_author_of_a_batch_gets_its_own_answer():
    say(registration(CLIENT), registration(OUTSIDER))
    say(request(push(message=b"m", type=9), signer=SENDER), request(push(OUTSIDER, access_token="x"), signer=EPHEMERAL))
    assert [type(body) for body in bodies(CLIENT)] == [RegistrationResponse]
    assert [type(body) for body in bodies(OUTSIDER)] == [RegistrationResponse]
    assert [report.error for body in bodies(EPHEMERAL) for report in body.reports] == [1]
    assert bodies(SENDER) == []  # waits for the first attempt


@pytest.mark.requirement("SN3")
def test_the_answer_to_a_request_comes_when_it_is_settled():
    say(registration())
    process = say(request(push()), now=NOW)
    assert Notification.objects.get().state == Notification.State.IN_FLIGHT
    process.process_batch(now=NOW + timedelta(seconds=1))
    assert bodies(EPHEMERAL) == []
    process.process_batch(now=NOW + timedelta(seconds=2))
    [answer] = bodies(EPHEMERAL)
    assert (answer.message_id, [report.success for report in answer.reports]) == (b"status message", [True])


def test_the_answer_to_a_request_goes_out_on_the_shard_it_came_from():
    process = say(registration())
    message = request(push(access_token="wrong"))
    shard = "/waku/2/rs/16/64"
    inbox.store([inbox.Envelope(message_hash(shard, message), shard, message)], source="test", now=NOW)
    process.process_batch()
    assert OutboundReply.objects.get(message_type=MessageType.RESPONSE).pubsub_topic == shard


@pytest.mark.requirement("SR20")
def test_unregistering_withdraws_waiting_notifications_and_drops_their_payloads():
    process = Process(limit=0)
    say(registration(), process=process)
    say(request(push(message=b"sealed", chat_id=b"chat")), process=process)
    say(registration(version=2, unregister=True), process=process)
    row = Notification.objects.get()
    assert (row.state, row.message, row.chat_id) == (Notification.State.WITHDRAWN, None, None)
    assert not Route.objects.exists()


def test_a_push_under_way_while_its_client_unregisters_is_not_repeated():
    process = Process(gateway := RecordingGateway(Outcome.TRANSIENT))
    say(registration(), process=process)
    say(request(push(message=b"sealed", chat_id=b"chat")), process=process)
    say(registration(version=2, unregister=True), process=process)
    process.process_backlog()
    process.process_backlog(now=timezone.now() + timedelta(hours=1))
    row = Notification.objects.get()
    assert (row.state, row.message, row.chat_id) == (Notification.State.WITHDRAWN, None, None)
    assert len(gateway.pushes) == 1


# Twice ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "limit", "max_bytes", "is_newest_first", "expected", "is_more_left"),
    [
        ([60] * 3, 2, 10_000, False, [0, 1], True),
        ([60] * 3, 3, 10_000, False, [0, 1, 2], True),
        ([60] * 3, 4, 10_000, False, [0, 1, 2], False),
        # A fifth are the oldest, so an envelope that full batches have passed over does not wait until a flood ends.
        ([60] * 30, 1, 10_000, True, [29], True),
        ([60] * 30, 10, 10_000, True, [0, 1, *range(22, 30)], True),
        ([60] * 30, 40, 10_000, True, [*range(30)], False),
        ([60] * 30, 20, 500, True, [0, 1, *range(23, 30)], True),
        # Large ones must not fill the memory of a worker, nor delay small ones that came later. At least one is taken.
        ([200] * 5 + [60] * 5, 20, 400, False, [0, *range(5, 10)], True),
        ([60] * 5, 10, 100, False, [0, 1], True),
        ([60] * 5, 10, 1, False, [0], True),
    ],
)
def test_a_batch_takes_the_oldest_or_the_newest_up_to_its_limits(
    monkeypatch, sizes, limit, max_bytes, is_newest_first, expected, is_more_left
):
    monkeypatch.setattr(inbox, "MAX_BATCH_BYTES", max_bytes)
    hashes = [put(on_own_topic(bytes(size)), now=NOW + timedelta(seconds=n))[0] for n, size in enumerate(sizes)]
    taken = inbox.take(limit, is_newest_first=is_newest_first)
    assert [hashes.index(envelope.hash) for envelope in taken.items] == expected
    assert taken.is_more_left == is_more_left


@pytest.mark.django_db(transaction=True)
def test_two_workers_that_accept_the_same_request_at_once_deliver_once():
    say(registration())
    processes = [Process() for _ in "12"]
    put(*(request(push(), timestamp_ns=number) for number in (1, 2)))

    def accept_one(process):
        with transaction.atomic():
            taken = inbox.take(1)
            barrier.wait()
            items = processing.open_all(taken.items, now=NOW)
            processing.process(items, limits=process.delivery.limits, capacity=Buckets(), now=NOW)

    barrier = threading.Barrier(2, timeout=10)
    at_once(*(lambda process=process: suppress_conflict(accept_one, process) for process in processes))
    at_once(*(process.process_batch for process in processes))
    assert Notification.objects.count() == NotificationRequest.objects.count() == 1
    assert {state for state, _ in reasons()} == {State.PROCESSED}


def suppress_conflict(work, *arguments):
    """Ignore a conflict, as a batch does, which makes another attempt."""
    with contextlib.suppress(IntegrityError):
        work(*arguments)


@pytest.mark.django_db(transaction=True)
def test_a_batch_that_collides_with_another_one_is_repeated(caplog):
    """Another worker stores the same new installation between our read and our write."""
    put(registration(version=1), registration(version=2))
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
        batch = beside(lambda: Process().process_batch(now=NOW))
    batch.result()
    assert OutboundReply.objects.count() == 2
    assert {state for state, _ in reasons()} == {State.PROCESSED}
    assert "batch_collided" in caplog.text
    assert RegistrationRow.objects.get().version == 2


# Poison ---------------------------------------------------------------------------------------------------------------


def poison():
    """Make a query for a registration whose token does not decrypt, so that no worker can answer it."""
    say(registration(OUTSIDER))
    derive_newest(budget=CpuBudget(0, 60))
    sealed = Keyring([b"\x77" * 32]).encrypt(Purpose.ACCESS_TOKEN, TOKEN.encode())
    RegistrationRow.objects.update(access_token_encrypted=sealed)
    return query(OUTSIDER.key_hash, signer=SENDER)


@pytest.mark.requirement("SR14")
@pytest.mark.parametrize("position", [0, 3, 6])
def test_a_poisoned_envelope_is_quarantined_with_its_payload_and_all_others_are_processed(position, caplog):
    messages = [registration(version=version) for version in range(1, 7)]
    messages.insert(position, poison())
    before = OutboundReply.objects.count()
    put(*messages, now=NOW)
    process_until_nothing_is_left()
    assert OutboundReply.objects.count() - before == 6
    failed = InboundEnvelope.objects.get(state=State.FAILED)
    assert (failed.reason, failed.payload is None, failed.processed_at) == ("DecryptionError", False, NOW)
    fault = EnvelopeFault.objects.get()
    assert (failed.fault_id, fault.error, fault.count) == (fault.pk, "DecryptionError", 1)
    assert fault.location == "registrations/encryption.py in decrypt"
    assert RegistrationRow.objects.get(public_key_hash=CLIENT.key_hash).version == 6
    assert inbox.take(10).items == []
    assert "envelope_failed" in caplog.text
    assert TOKEN not in caplog.text
    assert "device-token" not in caplog.text


def process_until_nothing_is_left():
    process = Process()
    while process.process_batch(now=NOW):
        pass


def test_a_poisoned_envelope_costs_its_batch_few_transactions(django_assert_max_num_queries):
    put(*(registration(version=version) for version in range(1, 33)), poison())
    with django_assert_max_num_queries(500):
        process_until_nothing_is_left()
    assert InboundEnvelope.objects.filter(state=State.FAILED).count() == 1


def test_no_other_envelope_is_quarantined_for_the_one_that_failed():
    """So it is also when another worker has locked the failed one by then."""
    poisoned, good = put(poison(), now=NOW), put(registration(), now=NOW + timedelta(seconds=1))
    process = Process()
    step, _ = process.bridge.intake()
    batch = Batch(1, NOW)
    with pytest.raises(DecryptionError):
        step.work(batch)
    OpenEnvelope.objects.filter(hash=poisoned[0]).update(state=State.PENDING_KEY)  # as if locked: not to be found
    step.rolled_back(batch)
    step.quarantine(DecryptionError(), batch)
    assert InboundEnvelope.objects.get(hash=good[0]).state == State.RECEIVED


def test_a_value_too_large_for_an_index_is_a_fault_of_its_envelope_and_no_outage():
    """Django raises an OperationalError for it, as for an outage, but repeating the batch would never help."""
    say(registration())
    with connection.cursor() as cursor:
        cursor.execute("CREATE INDEX too_small ON notifications_opennotification (message)")
    put(request(push(message=os.urandom(5000))), registration(OUTSIDER), now=NOW)
    process_until_nothing_is_left()
    assert len(bodies(OUTSIDER)) == 1
    assert (State.FAILED, "OperationalError") in reasons()


# Tables ---------------------------------------------------------------------------------------------------------------


def test_every_refusal_has_its_wire_code_and_every_message_type_its_choice():
    assert set(REGISTRATION_ERRORS) | {Refusal.TOO_MANY_CHANGES} == set(Refusal)  # which gets no answer
    assert set(MESSAGE_TYPES.values()) == {MessageType.REGISTRATION, MessageType.QUERY, MessageType.REQUEST}
    assert {choice.value for choice in InboundEnvelope.Types} == {int(message_type) for message_type in MessageType}
