"""The query topics in a bridge's memory: they are complete in time, and new ones are announced and reported."""

import asyncio
from datetime import UTC, datetime

import psycopg
import pytest
from django.db import connection, transaction
from hypothesis import given, settings
from hypothesis import strategies as st

from registrations.models import TopicKey
from tests.rig.budget import examples
from tests.rig.databases import notices
from waku_bridge.codec import wire
from waku_bridge.query_topics import CHANNEL, QueryTopics, TopicSet, listen_to, stop_listening_to
from waku_bridge.reading.intake import Session


class Listening:
    """The topics of a session, in an event loop of its own that runs only during calls."""

    def __init__(self, on_new=None):
        self.topics = QueryTopics(on_new)
        self.session = Session(self.topics)
        self.runner = asyncio.Runner()

    def __contains__(self, content_topic):
        return content_topic in self.topics

    def __len__(self):
        return len(self.topics)

    def refresh(self):
        """Take in the topics that were committed before, with any statement."""
        self.runner.run(self.session.execute("SELECT 1"))

    def close(self):
        self.runner.run(self.session.close())
        self.runner.close()


NOW = datetime(2026, 1, 1, tzinfo=UTC)
HASHES = [bytes([n]) * 64 for n in range(3)]


def topic_of(public_key_hash):
    return wire.content_topic(wire.query_name(public_key_hash))


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


def end_connection(listening):
    """End the connection as the server does it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [listening.session._connection.info.backend_pid])
    with pytest.raises(psycopg.Error):
        listening.refresh()


def register(number):
    return lambda _: listen_to([HASHES[number]], now=NOW)


def forget(number):
    return lambda _: stop_listening_to(wire.query_name(HASHES[number]))


def rolled_back(change):
    def change_and_roll_back(listening):
        with transaction.atomic():
            change(listening)
            transaction.set_rollback(True)

    return change_and_roll_back


def delete_rows(_listening):
    """Remove all topics without an announcement."""
    TopicKey.objects.all().delete()


def announce_again(_listening):
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify('query_topics', topic::text) FROM registrations_topickey")


def share_a_topic(_listening):
    """Let another user have the topic of the first one, which was announced before."""
    TopicKey.objects.create(name="ab" * 64, topic=TopicKey.objects.get().topic, created_at=NOW)


REFRESH = Listening.refresh  # any statement takes in what was committed before
BEGUN = [register(0), REFRESH]
STORIES = {
    "topics from before the start are loaded": (BEGUN, [0], []),
    "a topic is reported once": ([*BEGUN, register(0), register(1), REFRESH, register(1), REFRESH], [0, 1], [1]),
    "a second name on a known topic is not reported": ([*BEGUN, announce_again, REFRESH], [0], []),
    "a topic that was rolled back is not taken in": ([REFRESH, rolled_back(register(0)), REFRESH], [], []),
    "a removed topic is dropped": ([register(1), *BEGUN, forget(0), REFRESH], [1], []),
    "it is reported when it is registered again": ([*BEGUN, forget(0), REFRESH, register(0), REFRESH], [0], [0]),
    "both before the next statement": ([*BEGUN, forget(0), register(0), REFRESH], [0], []),
    "a removed topic that another user shares stays": ([*BEGUN, share_a_topic, forget(0), REFRESH], [0], []),
    "a removal that was rolled back drops nothing": ([*BEGUN, rolled_back(forget(0)), REFRESH], [0], []),
    "topics that a lost connection missed are taken in and reported": (
        [*BEGUN, register(1), lose_connection, register(2), REFRESH],
        [0, 1, 2],
        [1, 2],
    ),
    "a connection that the server ends is opened again": ([REFRESH, register(0), end_connection, REFRESH], [0], [0]),
    "removed rows stay until the next load": ([*BEGUN, delete_rows, REFRESH], [0], []),
    "removed rows leave with the next load": ([*BEGUN, delete_rows, lose_connection, REFRESH], [], []),
}


@pytest.mark.parametrize("story", STORIES)
def test_the_topics_in_memory_are_those_that_are_registered_and_new_ones_are_reported(listening, reported, story):
    steps, held, new = STORIES[story]
    for step in steps:
        step(listening)
    assert [number for number, each in enumerate(HASHES) if topic_of(each) in listening] == held
    assert len(listening) == len(held)
    assert sorted(reported) == sorted(topic_of(HASHES[number]) for number in new)
    assert not [text for text in ("", "/waku/1/0xzzzzzzzz/rfc26") if text in listening]


def test_a_large_batch_of_topics_is_taken_in_at_once(listening):
    listening.refresh()
    hashes = [number.to_bytes(2) * 32 for number in range(2000)]
    listen_to(hashes, now=NOW)
    listening.refresh()
    assert all(topic_of(public_key_hash) in listening for public_key_hash in hashes)


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
        cursor.execute("ALTER TABLE elsewhere RENAME TO registrations_topickey")
    listening.refresh()
    assert reported == [topic_of(HASHES[1])]
    for _ in "12":  # closing twice is harmless
        listening.runner.run(listening.session.close())


# The set of topics, in a tenth of the memory of a set -----------------------------------------------------------------

# Few values of the upper bytes, so that many topics share an array.
CROWDED = st.builds(lambda upper, lower: upper << 16 | lower, st.integers(0, 2), st.integers(0, 9))
TOPICS = st.integers(0, 2**32 - 1) | CROWDED
few = settings(max_examples=examples(20))  # going through a set takes some milliseconds, however few it holds


@few
@given(st.lists(TOPICS), st.lists(TOPICS), st.lists(TOPICS))
def test_a_set_holds_the_added_topics_without_the_discarded_ones(added, discarded, others):
    topics, expected = TopicSet(), set()
    for topic in added:
        assert topics.add(topic) == (topic not in expected)
        expected.add(topic)
    for topic in discarded:
        topics.discard(topic)
    expected -= set(discarded)
    assert list(topics) == sorted(expected)
    assert len(topics) == len(expected)
    assert all((topic in topics) == (topic in expected) for topic in added + discarded + others)


@few
@given(st.sets(TOPICS))
def test_a_loaded_set_equals_one_of_added_topics(added):
    topics = TopicSet(b"".join(topic.to_bytes(4) for topic in sorted(added)))
    assert list(topics) == sorted(added)
    assert len(topics) == len(added)
    assert all(topic in topics for topic in added)


# What is announced ----------------------------------------------------------------------------------------------------


def hashes(count):
    return [number.to_bytes(64) for number in range(count)]


def number_of(public_key_hash):
    return int.from_bytes(wire.topic(wire.query_name(public_key_hash)))


@pytest.fixture
def announced(transactional_db):
    """Return a function that returns the announcements since the last call, as texts."""
    with notices(CHANNEL) as received:
        yield lambda: [notice.payload for notice in received()]


def test_stores_and_announces_new_topics_alone(announced):
    listen_to(hashes(1) * 2, now=NOW)
    row = TopicKey.objects.get()
    assert (row.name, row.topic, row.key_encrypted, row.created_at) == ("00" * 64, number_of(b"\0" * 64), None, NOW)
    assert announced() == [str(row.topic)]
    listen_to(hashes(2), now=NOW)
    assert announced() == [str(number_of(hashes(2)[1]))]
    listen_to(hashes(2), now=NOW)
    assert announced() == []
    assert TopicKey.objects.count() == 2


def test_notices_of_the_release_before_are_understood(listening):
    listening.refresh()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify('query_topics', '1,22')")
    listening.refresh()
    assert len(listening) == 2


def test_no_key_hashes_cost_no_statement(announced, django_assert_num_queries):
    with django_assert_num_queries(0):
        listen_to([], now=NOW)
    assert announced() == []
