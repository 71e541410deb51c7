"""How a bridge learns of query topics in time, and what it tells of them."""

from datetime import UTC, datetime

import psycopg
import pytest
from django.db import connection, transaction

from registrations.models import TopicKey
from waku_bridge.codec import topics
from waku_bridge.query_topics import listen_to, stop_listening_to
from waku_bridge.query_topics.tests.listening import Listening

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HASHES = [bytes([n]) * 64 for n in range(3)]
pytestmark = pytest.mark.django_db(transaction=True)


def topic_of(public_key_hash):
    return topics.content_topic(topics.query_name(public_key_hash))


@pytest.fixture
def reported():
    """The content topics that were called new, in order."""
    return []


@pytest.fixture
def listening(reported):
    reader = Listening(on_new=reported.extend)
    yield reader
    reader.close()


def lose_connection(listening):
    listening.session._connection.pgconn.finish()
    with pytest.raises(psycopg.Error):
        listening.refresh()


def test_knows_what_was_registered_before_it_started(listening):
    listen_to(HASHES[:1], now=NOW)
    listening.refresh()
    assert topic_of(HASHES[0]) in listening
    assert topic_of(HASHES[1]) not in listening
    assert len(listening) == 1


def test_nothing_that_is_no_topic_is_among_them(listening):
    listening.refresh()
    assert "" not in listening
    assert "/waku/1/0xzzzzzzzz/rfc26" not in listening


def test_knows_every_topic_that_was_committed_before_it_looks(listening):
    listening.refresh()
    for public_key_hash in HASHES:
        listen_to([public_key_hash], now=NOW)
        listening.refresh()
        assert topic_of(public_key_hash) in listening


def test_learns_of_a_large_batch_at_once(listening):
    listening.refresh()
    hashes = [number.to_bytes(2) * 32 for number in range(2000)]
    listen_to(hashes, now=NOW)
    listening.refresh()
    assert all(topic_of(public_key_hash) in listening for public_key_hash in hashes)


def test_does_not_learn_of_what_was_rolled_back(listening):
    listening.refresh()
    with transaction.atomic():
        listen_to(HASHES[:1], now=NOW)
        transaction.set_rollback(True)
    listening.refresh()
    assert len(listening) == 0


# What is new ----------------------------------------------------------------------------------------------------------


def test_tells_what_was_registered_since_it_started_once(listening, reported):
    listen_to(HASHES[:1], now=NOW)
    listening.refresh()
    assert reported == []
    listen_to(HASHES[:2], now=NOW)
    listening.refresh()
    listen_to(HASHES[:2], now=NOW)
    listening.refresh()
    assert reported == [topic_of(HASHES[1])]


def test_a_second_name_on_a_known_topic_is_nothing_new(listening, reported):
    listen_to(HASHES[:1], now=NOW)
    listening.refresh()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify('query_topics', topic::text) FROM registrations_topickey")
    listening.refresh()
    assert reported == []


# What is gone ---------------------------------------------------------------------------------------------------------


def forget(public_key_hash):
    stop_listening_to(topics.query_name(public_key_hash))


def test_a_forgotten_topic_is_dropped_and_new_when_it_is_registered_again(listening, reported):
    listen_to(HASHES[:2], now=NOW)
    listening.refresh()
    forget(HASHES[0])
    listening.refresh()
    assert [topic_of(public_key_hash) in listening for public_key_hash in HASHES[:2]] == [False, True]
    listen_to(HASHES[:1], now=NOW)
    listening.refresh()
    assert topic_of(HASHES[0]) in listening
    assert reported == [topic_of(HASHES[0])]


def test_a_topic_that_was_forgotten_and_registered_again_before_the_next_look_stays(listening):
    listen_to(HASHES[:1], now=NOW)
    listening.refresh()
    forget(HASHES[0])
    listen_to(HASHES[:1], now=NOW)
    listening.refresh()
    assert topic_of(HASHES[0]) in listening


def test_a_topic_that_somebody_else_came_to_share_stays(listening):
    """Their registration was announced before ours was forgotten."""
    listen_to(HASHES[:1], now=NOW)
    listening.refresh()
    TopicKey.objects.create(name="ab" * 64, topic=TopicKey.objects.get().topic, created_at=NOW)
    forget(HASHES[0])
    listening.refresh()
    assert topic_of(HASHES[0]) in listening


def test_forgetting_that_was_rolled_back_drops_nothing(listening):
    listen_to(HASHES[:1], now=NOW)
    listening.refresh()
    with transaction.atomic():
        forget(HASHES[0])
        transaction.set_rollback(True)
    listening.refresh()
    assert topic_of(HASHES[0]) in listening


# Lost connections -----------------------------------------------------------------------------------------------------


def test_after_a_lost_connection_it_knows_and_tells_what_it_missed(listening, reported):
    listen_to(HASHES[:1], now=NOW)
    listening.refresh()
    listen_to(HASHES[1:2], now=NOW)
    lose_connection(listening)
    listen_to(HASHES[2:3], now=NOW)
    listening.refresh()
    assert all(topic_of(public_key_hash) in listening for public_key_hash in HASHES)
    assert sorted(reported) == sorted(topic_of(public_key_hash) for public_key_hash in HASHES[1:])


def test_while_the_database_is_away_it_knows_what_it_knew(listening):
    listen_to(HASHES[:1], now=NOW)
    listening.refresh()
    lose_connection(listening)
    assert topic_of(HASHES[0]) in listening
    assert len(listening) == 1


def test_a_reload_that_breaks_leaves_what_was_known_and_is_repeated(listening, reported):
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


def test_a_connection_that_the_server_ends_is_made_anew(listening):
    listening.refresh()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [listening.session._connection.info.backend_pid])
    listen_to(HASHES[:1], now=NOW)
    with pytest.raises(psycopg.Error):
        listening.refresh()
    listening.refresh()
    assert topic_of(HASHES[0]) in listening


def test_rows_that_are_gone_are_forgotten_with_the_next_load(listening):
    listen_to(HASHES[:1], now=NOW)
    listening.refresh()
    TopicKey.objects.all().delete()
    listening.refresh()
    assert len(listening) == 1
    lose_connection(listening)
    listening.refresh()
    assert len(listening) == 0


def test_closing_twice_is_harmless(listening):
    listening.refresh()
    listening.runner.run(listening.session.close())
    listening.runner.run(listening.session.close())
