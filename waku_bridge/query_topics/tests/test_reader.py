"""The query topics in a bridge's memory: they are complete in time, and new ones are reported."""

import sys
from datetime import UTC, datetime

import psycopg
import pytest
from django.db import connection, transaction
from hypothesis import given, settings
from hypothesis import strategies as st

from registrations.models import TopicKey
from tests.rig.budget import examples
from waku_bridge.codec import topics
from waku_bridge.query_topics import listen_to, stop_listening_to
from waku_bridge.query_topics.reader import TopicSet
from waku_bridge.query_topics.tests.listening import Listening

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HASHES = [bytes([n]) * 64 for n in range(3)]


def topic_of(public_key_hash):
    return topics.content_topic(topics.query_name(public_key_hash))


@pytest.fixture
def reported():
    """Return the content topics that were reported as new, in order."""
    return []


@pytest.fixture
def listening(reported, transactional_db):
    reader = Listening(on_new=reported.extend)
    yield reader
    reader.close()


def lose_connection(listening):
    listening.session._connection.pgconn.finish()
    with pytest.raises(psycopg.Error):
        listening.refresh()


def test_topics_from_before_the_start_are_loaded(listening):
    listen_to(HASHES[:1], now=NOW)
    listening.refresh()
    assert topic_of(HASHES[0]) in listening
    assert not [text for text in (topic_of(HASHES[1]), "", "/waku/1/0xzzzzzzzz/rfc26") if text in listening]
    assert len(listening) == 1


def test_a_large_batch_of_topics_is_taken_in_at_once(listening):
    listening.refresh()
    hashes = [number.to_bytes(2) * 32 for number in range(2000)]
    listen_to(hashes, now=NOW)
    listening.refresh()
    assert all(topic_of(public_key_hash) in listening for public_key_hash in hashes)


def test_a_topic_that_was_rolled_back_is_not_taken_in(listening):
    listening.refresh()
    with transaction.atomic():
        listen_to(HASHES[:1], now=NOW)
        transaction.set_rollback(True)
    listening.refresh()
    assert len(listening) == 0


# What is new ----------------------------------------------------------------------------------------------------------


def test_each_topic_registered_since_the_start_is_reported_once(listening, reported):
    listen_to(HASHES[:1], now=NOW)
    listening.refresh()
    assert reported == []
    listen_to(HASHES[:2], now=NOW)
    listening.refresh()
    listen_to(HASHES[:2], now=NOW)
    listening.refresh()
    assert reported == [topic_of(HASHES[1])]


def test_a_second_name_on_a_known_topic_is_not_reported(listening, reported):
    listen_to(HASHES[:1], now=NOW)
    listening.refresh()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify('query_topics', topic::text) FROM registrations_topickey")
    listening.refresh()
    assert reported == []


# What is gone ---------------------------------------------------------------------------------------------------------


def forget(public_key_hash):
    stop_listening_to(topics.query_name(public_key_hash))


def test_a_removed_topic_is_dropped_and_reported_when_it_is_registered_again(listening, reported):
    listen_to(HASHES[:2], now=NOW)
    listening.refresh()
    forget(HASHES[0])
    listening.refresh()
    assert [topic_of(public_key_hash) in listening for public_key_hash in HASHES[:2]] == [False, True]
    listen_to(HASHES[:1], now=NOW)
    listening.refresh()
    assert topic_of(HASHES[0]) in listening
    assert reported == [topic_of(HASHES[0])]


def test_a_topic_that_was_removed_and_registered_again_before_the_next_statement_stays(listening):
    listen_to(HASHES[:1], now=NOW)
    listening.refresh()
    forget(HASHES[0])
    listen_to(HASHES[:1], now=NOW)
    listening.refresh()
    assert topic_of(HASHES[0]) in listening


def test_a_removed_topic_that_another_user_shares_stays(listening):
    """The other registration was announced before the first one was removed."""
    listen_to(HASHES[:1], now=NOW)
    listening.refresh()
    TopicKey.objects.create(name="ab" * 64, topic=TopicKey.objects.get().topic, created_at=NOW)
    forget(HASHES[0])
    listening.refresh()
    assert topic_of(HASHES[0]) in listening


def test_a_removal_that_was_rolled_back_drops_nothing(listening):
    listen_to(HASHES[:1], now=NOW)
    listening.refresh()
    with transaction.atomic():
        forget(HASHES[0])
        transaction.set_rollback(True)
    listening.refresh()
    assert topic_of(HASHES[0]) in listening


# Lost connections -----------------------------------------------------------------------------------------------------


def test_after_a_lost_connection_missed_topics_are_taken_in_and_reported(listening, reported):
    listen_to(HASHES[:1], now=NOW)
    listening.refresh()
    listen_to(HASHES[1:2], now=NOW)
    lose_connection(listening)
    listen_to(HASHES[2:3], now=NOW)
    listening.refresh()
    assert all(topic_of(public_key_hash) in listening for public_key_hash in HASHES)
    assert sorted(reported) == sorted(topic_of(public_key_hash) for public_key_hash in HASHES[1:])


def test_a_failed_reload_keeps_the_topics_and_is_repeated(listening, reported):
    listen_to(HASHES[:1], now=NOW)
    listening.refresh()
    lose_connection(listening)
    listen_to(HASHES[1:2], now=NOW)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE registrations_topickey RENAME TO elsewhere")
    with pytest.raises(psycopg.Error):
        listening.refresh()
    assert (topic_of(HASHES[0]) in listening, topic_of(HASHES[1]) in listening, reported) == (True, False, [])
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE elsewhere RENAME TO registrations_topickey")
    listening.refresh()
    assert topic_of(HASHES[1]) in listening
    assert reported == [topic_of(HASHES[1])]


def test_a_connection_that_the_server_ends_is_opened_again(listening):
    listening.refresh()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [listening.session._connection.info.backend_pid])
    listen_to(HASHES[:1], now=NOW)
    with pytest.raises(psycopg.Error):
        listening.refresh()
    listening.refresh()
    assert topic_of(HASHES[0]) in listening


def test_removed_rows_leave_the_set_with_the_next_load(listening):
    listen_to(HASHES[:1], now=NOW)
    listening.refresh()
    TopicKey.objects.all().delete()
    listening.refresh()
    assert len(listening) == 1
    lose_connection(listening)
    listening.refresh()
    assert len(listening) == 0


def test_closing_a_session_twice_is_harmless(listening):
    listening.refresh()
    listening.runner.run(listening.session.close())
    listening.runner.run(listening.session.close())


# The set of topics, in a tenth of the memory of a set -----------------------------------------------------------------

# Few values of the upper bytes, so that many topics share an array.
CROWDED = st.builds(lambda upper, lower: upper << 16 | lower, st.integers(0, 2), st.integers(0, 9))
TOPICS = st.integers(0, 2**32 - 1) | CROWDED
few = settings(max_examples=examples(20))  # going through a set takes some milliseconds, however few it holds


@few
@given(st.lists(TOPICS), st.lists(TOPICS))
def test_a_set_holds_the_added_topics_and_no_others(added, others):
    topics, expected = TopicSet(), set()
    for topic in added:
        assert topics.add(topic) == (topic not in expected)
        expected.add(topic)
    assert list(topics) == sorted(expected)
    assert len(topics) == len(expected)
    assert all((topic in topics) == (topic in expected) for topic in added + others)


@few
@given(st.sets(CROWDED), st.lists(TOPICS))
def test_a_discarded_topic_is_not_in_the_set(added, discarded):
    topics = TopicSet()
    for topic in added:
        topics.add(topic)
    for topic in discarded:
        topics.discard(topic)
    assert list(topics) == sorted(added.difference(discarded))
    assert len(topics) == len(added.difference(discarded))


def test_a_lookup_during_a_removal_does_not_see_an_array_shrink():
    topics = TopicSet()
    topics.add(5)
    asked = topics._lower[0]
    topics.discard(5)
    assert list(asked) == [5]


@few
@given(st.sets(CROWDED))
def test_a_filled_set_equals_one_of_added_topics(added):
    topics = TopicSet()
    for upper in range(4):
        lower = sorted(topic & 0xFFFF for topic in added if topic >> 16 == upper)
        topics.fill(upper, b"".join(number.to_bytes(2) for number in lower))
    assert list(topics) == sorted(added)
    assert len(topics) == len(added)
    assert all(topic in topics for topic in added)


def test_many_topics_in_one_array_take_two_bytes_each():
    """An attacker who makes up names for one array can make it longer, and no more than that."""
    topics = TopicSet()
    for lower in range(2**16):
        topics.add(lower)
    assert len(topics) == 2**16
    assert sys.getsizeof(topics._lower[0]) < 2**16 * 2 * 1.2
