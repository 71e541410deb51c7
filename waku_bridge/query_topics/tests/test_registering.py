"""Changes to the query topics: new ones are stored and announced, and known ones are not announced again."""

from datetime import UTC, datetime

import psycopg
import pytest
from django.db import connection

from registrations.models import TopicKey
from waku_bridge.codec import topics
from waku_bridge.query_topics.registering import CHANNEL, listen_to, read_notice

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MAX_NOTICE_BYTES = 8000


def hashes(count):
    return [number.to_bytes(64) for number in range(count)]


def topic_of(public_key_hash):
    return int.from_bytes(topics.topic(topics.query_name(public_key_hash)))


@pytest.fixture
def notices(transactional_db):
    """Return a function that returns the announcements since the last call, as texts."""
    with psycopg.connect(**connection.get_connection_params(), autocommit=True) as listening:
        listening.execute(f"LISTEN {CHANNEL}")

        def received():
            listening.execute("SELECT 1")
            return [notice.payload for notice in listening.notifies(timeout=0)]

        yield received


def test_stores_and_announces_the_topic_of_a_key_hash(notices):
    listen_to(hashes(1), now=NOW)
    row = TopicKey.objects.get()
    assert (row.name, row.topic, row.key_encrypted, row.created_at) == ("00" * 64, topic_of(b"\0" * 64), None, NOW)
    assert notices() == [str(row.topic)]


def test_announces_a_whole_batch_at_once(notices):
    listen_to(hashes(200) * 2, now=NOW)
    [notice] = notices()
    assert sorted(read_notice(notice)) == sorted(map(topic_of, hashes(200)))


def test_topics_beyond_one_notice_take_several(notices):
    listen_to(hashes(2000), now=NOW)
    received = notices()
    assert sorted(topic for notice in received for topic in read_notice(notice)) == sorted(map(topic_of, hashes(2000)))
    assert all(len(notice) < MAX_NOTICE_BYTES for notice in received)


def test_a_refreshed_registration_announces_nothing(notices):
    listen_to(hashes(2), now=NOW)
    notices()
    listen_to(hashes(3), now=NOW)
    assert notices() == [str(topic_of(hashes(3)[2]))]
    listen_to(hashes(3), now=NOW)
    assert notices() == []
    assert TopicKey.objects.count() == 3


def test_no_key_hashes_cost_no_statement(notices, django_assert_num_queries):
    with django_assert_num_queries(0):
        listen_to([], now=NOW)
    assert notices() == []
