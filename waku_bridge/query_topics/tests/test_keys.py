"""The keys of query topics: derived once, stored encrypted, within a budget."""

import os
import threading
from datetime import UTC, datetime

import pytest

from registrations.keys.encryption import Keyring, Purpose
from registrations.keys.keyring import keyring
from registrations.models import TopicKey
from tests.rig.conversation import CLIENT
from waku_bridge.codec import topics
from waku_bridge.query_topics import CpuBudget, derive_keys, derive_newest, keys, listen_to, load_keys
from waku_bridge.query_topics.keys import THREADS, Keys

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HASHES = [bytes([n]) * 64 for n in range(3)]
NOTHING = Keys({}, set())


def topic_of(public_key_hash):
    return topics.content_topic(topics.query_name(public_key_hash))


def enough():
    return CpuBudget(0, 60)


def nothing_left():
    return CpuBudget(0, 0)


def for_one_round():
    """Return a budget that the first keys overdraw, which are derived in parallel."""
    return CpuBudget(0, 1e-9)


@pytest.mark.django_db
def test_a_new_topic_misses_its_key():
    listen_to([CLIENT.key_hash], now=NOW)
    topic = topic_of(CLIENT.key_hash)
    assert load_keys([topic]) == Keys({}, {topic})


@pytest.mark.django_db
def test_a_key_is_derived_once_and_stored_encrypted(django_assert_num_queries):
    listen_to([CLIENT.key_hash], now=NOW)
    topic = topic_of(CLIENT.key_hash)
    assert derive_keys([topic], budget=enough()) == set()
    with django_assert_num_queries(1):
        [key] = load_keys([topic]).known[topic]
    assert key == topics.symmetric_key(topics.query_name(CLIENT.key_hash))
    sealed = bytes(TopicKey.objects.get().key_encrypted)
    assert key not in sealed
    assert keyring().decrypt(Purpose.TOPIC_KEY, sealed) == key


def test_keys_are_derived_with_the_lowest_priority():
    [priority] = set(keys._pool().map(lambda _: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), range(3)))
    assert priority == keys.LOWEST_PRIORITY > os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.django_db
def test_a_stored_key_is_not_derived_again(django_assert_num_queries):
    listen_to([CLIENT.key_hash], now=NOW)
    TopicKey.objects.update(key_encrypted=keyring().encrypt(Purpose.TOPIC_KEY, b"k" * 32))
    topic = topic_of(CLIENT.key_hash)
    with django_assert_num_queries(1):
        assert derive_keys([topic], budget=enough()) == set()
    assert load_keys([topic]) == Keys({topic: [b"k" * 32]}, set())


@pytest.mark.django_db
def test_a_key_that_no_longer_decrypts_is_derived_again():
    listen_to([CLIENT.key_hash], now=NOW)
    TopicKey.objects.update(key_encrypted=Keyring([b"\x77" * 32]).encrypt(Purpose.TOPIC_KEY, b"k" * 32))
    topic = topic_of(CLIENT.key_hash)
    assert load_keys([topic]).missing == {topic}
    assert derive_keys([topic], budget=enough()) == set()
    [key] = load_keys([topic]).known[topic]
    assert keyring().decrypt(Purpose.TOPIC_KEY, TopicKey.objects.get().key_encrypted) == key


@pytest.mark.django_db
def test_two_names_on_one_topic_give_both_keys():
    listen_to(HASHES[:2], now=NOW)
    TopicKey.objects.update(topic=topics.number(topic_of(HASHES[0])))
    derive_keys([topic_of(HASHES[0])], budget=enough())
    keys = load_keys([topic_of(HASHES[0])]).known[topic_of(HASHES[0])]
    assert set(keys) == {topics.symmetric_key(topics.query_name(h)) for h in HASHES[:2]}


@pytest.mark.django_db
def test_a_topic_with_one_of_two_keys_gives_that_and_misses_the_other():
    listen_to(HASHES[:1], now=NOW)
    topic = topic_of(HASHES[0])
    derive_keys([topic], budget=enough())
    listen_to(HASHES[1:2], now=NOW)
    TopicKey.objects.update(topic=topics.number(topic))
    assert load_keys([topic]) == Keys({topic: [topics.symmetric_key(topics.query_name(HASHES[0]))]}, {topic})


@pytest.mark.django_db
def test_unregistered_topics_have_no_keys(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert load_keys(["/waku/1/nonsense", ""]) == NOTHING
    assert load_keys([topic_of(HASHES[0])]) == NOTHING


@pytest.mark.django_db
def test_without_a_budget_every_key_stays_missing():
    listen_to(HASHES, now=NOW)
    wanted = {topic_of(public_key_hash) for public_key_hash in HASHES}
    assert derive_keys(wanted, budget=nothing_left()) == wanted
    assert derive_newest(budget=nothing_left()) == 0
    assert not TopicKey.objects.filter(key_encrypted__isnull=False).exists()


@pytest.mark.django_db
def test_a_budget_that_runs_out_leaves_the_rest_for_later():
    listen_to([bytes([n]) * 64 for n in range(3 * THREADS)], now=NOW)
    wanted = {topic_of(bytes([n]) * 64) for n in range(3 * THREADS)}
    missing = derive_keys(wanted, budget=for_one_round())
    assert len(missing) == 2 * THREADS
    assert load_keys(wanted).missing == missing
    assert derive_keys(missing, budget=enough()) == set()


@pytest.mark.django_db
def test_all_keys_of_a_call_are_stored_in_one_statement(django_assert_num_queries):
    listen_to(HASHES, now=NOW)
    with django_assert_num_queries(2):
        derive_keys([topic_of(public_key_hash) for public_key_hash in HASHES], budget=enough())


# In the background ----------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_the_keys_of_the_newest_registrations_are_derived_first():
    for n in range(2 * THREADS):
        listen_to([bytes([n]) * 64], now=NOW)
    assert derive_newest(budget=for_one_round()) == THREADS
    newest = TopicKey.objects.order_by("-pk")
    assert all(row.key_encrypted for row in newest[:THREADS])
    assert not any(row.key_encrypted for row in newest[THREADS:])
    assert derive_newest(budget=enough()) == THREADS
    assert derive_newest(budget=enough()) == 0
