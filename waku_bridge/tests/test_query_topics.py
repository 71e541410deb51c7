"""Which query topics we listen to, and how a reader learns of new ones in time."""

from datetime import UTC, datetime

import psycopg
import pytest
from django.db import transaction
from hypothesis import given
from hypothesis import strategies as st

from registrations.encryption import Keyring, Purpose
from registrations.keyring import keyring
from registrations.models import TopicKey
from tests.conversation import CLIENT
from waku_bridge import query_topics
from waku_bridge.codec import topics
from waku_bridge.query_topics import QueryTopics, listen_to, load_keys, number

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HASHES = [bytes([n]) * 64 for n in range(3)]


def topic_of(public_key_hash):
    return topics.content_topic(topics.query_name(public_key_hash))


@pytest.fixture
def listening():
    reader = QueryTopics()
    yield reader
    reader.close()


# Content topics -------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1))
def test_reads_the_number_in_a_content_topic(topic):
    assert number(f"/waku/1/0x{topic:08x}/rfc26") == topic


@pytest.mark.parametrize(
    "other",
    [
        "",
        "/waku/1/0x0123abcd/rfc27",
        "/waku/2/0x0123abcd/rfc26",
        "/waku/1/0x0123ABCD/rfc26",
        "/waku/1/0x+123abcd/rfc26",
        "/waku/1/0x-123abcd/rfc26",
        "/waku/1/0x 123abcd/rfc26",
        "/waku/1/0x1_23_4_5/rfc26",
        "/waku/1/0x\u0660123abcd/rfc26",
        "/waku/1/0x0123abcd/rfc26/",
        "/waku/1/0x123abcd/rfc26",
    ],
)
def test_another_spelling_is_another_topic(other):
    assert number(other) is None


# Keys -----------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_derives_a_key_at_the_first_query_and_keeps_it_encrypted():
    listen_to([CLIENT.key_hash], now=NOW)
    assert TopicKey.objects.get().key_encrypted is None
    topic = topic_of(CLIENT.key_hash)
    [key] = load_keys([topic])[topic]
    assert key == topics.symmetric_key(topics.query_name(CLIENT.key_hash))
    sealed = bytes(TopicKey.objects.get().key_encrypted)
    assert key not in sealed
    assert keyring().decrypt(Purpose.TOPIC_KEY, sealed) == key


@pytest.mark.django_db
def test_a_kept_key_is_used_as_it_is(django_assert_num_queries):
    listen_to([CLIENT.key_hash], now=NOW)
    TopicKey.objects.update(key_encrypted=keyring().encrypt(Purpose.TOPIC_KEY, b"k" * 32))
    topic = topic_of(CLIENT.key_hash)
    with django_assert_num_queries(1):
        assert load_keys([topic]) == {topic: [b"k" * 32]}


@pytest.mark.django_db
def test_a_key_that_no_longer_decrypts_is_derived_again():
    listen_to([CLIENT.key_hash], now=NOW)
    TopicKey.objects.update(key_encrypted=Keyring([b"\x77" * 32]).encrypt(Purpose.TOPIC_KEY, b"k" * 32))
    topic = topic_of(CLIENT.key_hash)
    [key] = load_keys([topic])[topic]
    assert keyring().decrypt(Purpose.TOPIC_KEY, TopicKey.objects.get().key_encrypted) == key


@pytest.mark.django_db
def test_two_names_on_one_topic_give_both_keys():
    listen_to(HASHES[:2], now=NOW)
    TopicKey.objects.update(topic=number(topic_of(HASHES[0])))
    keys = load_keys([topic_of(HASHES[0])])[topic_of(HASHES[0])]
    assert set(keys) == {topics.symmetric_key(topics.query_name(h)) for h in HASHES[:2]}


@pytest.mark.django_db
def test_topics_that_nobody_registered_have_no_keys(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert load_keys(["/waku/1/nonsense", ""]) == {}
    assert load_keys([topic_of(HASHES[0])]) == {}


@pytest.mark.django_db
def test_listening_twice_changes_nothing():
    listen_to(HASHES, now=NOW)
    listen_to(HASHES, now=NOW)
    assert TopicKey.objects.count() == 3


# Readers --------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_knows_what_was_registered_before_it_started(listening):
    listen_to(HASHES[:1], now=NOW)
    listening.refresh()
    assert topic_of(HASHES[0]) in listening
    assert topic_of(HASHES[1]) not in listening
    assert len(listening) == 1


@pytest.mark.django_db(transaction=True)
def test_knows_every_topic_that_was_committed_before_it_looks(listening):
    listening.refresh()
    for public_key_hash in HASHES:
        listen_to([public_key_hash], now=NOW)
        listening.refresh()
        assert topic_of(public_key_hash) in listening


@pytest.mark.django_db(transaction=True)
def test_learns_of_a_whole_batch_at_once(listening):
    listening.refresh()
    hashes = [number.to_bytes(2) * 32 for number in range(200)]
    listen_to(hashes, now=NOW)
    listening.refresh()
    assert all(topic_of(public_key_hash) in listening for public_key_hash in hashes)


@pytest.mark.django_db(transaction=True)
def test_does_not_learn_of_what_was_rolled_back(listening):
    listening.refresh()
    with transaction.atomic():
        listen_to(HASHES[:1], now=NOW)
        transaction.set_rollback(True)
    listening.refresh()
    assert len(listening) == 0


@pytest.mark.django_db(transaction=True)
def test_after_a_lost_connection_it_knows_what_it_missed(listening):
    listening.refresh()
    listening._connection.pgconn.finish()
    listen_to(HASHES[:1], now=NOW)
    with pytest.raises(psycopg.Error):
        listening.refresh()
    assert topic_of(HASHES[0]) not in listening
    listening.refresh()
    assert topic_of(HASHES[0]) in listening


def test_closing_twice_is_harmless():
    reader = QueryTopics()
    reader.close()
    reader.close()
    assert len("/waku/1/0x01020304/rfc26") == query_topics.CONTENT_TOPIC_LENGTH
