"""The keys of query topics: derived once, stored encrypted, within a budget of CPU time."""

import os
import threading
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from registrations.encryption import Keyring, Purpose, keyring
from registrations.models import TopicKey
from tests.rig.conversation import CLIENT
from waku_bridge import query_topics
from waku_bridge.codec import wire
from waku_bridge.query_topics import THREADS, CpuBudget, derive_keys, derive_newest, listen_to, load_keys

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HASHES = [bytes([n]) * 64 for n in range(3)]
pytestmark = pytest.mark.django_db


def topic_of(public_key_hash):
    return wire.content_topic(wire.query_name(public_key_hash))


def budget(seconds):
    """Return a budget without a refill. The first keys, which are derived in parallel, overdraw a tiny one."""
    return CpuBudget(0, seconds)


def test_a_key_is_derived_once_for_a_new_topic_and_stored_encrypted(django_assert_num_queries):
    listen_to([CLIENT.key_hash], now=NOW)
    topic = topic_of(CLIENT.key_hash)
    assert load_keys([topic]) == {topic: [None]}
    assert derive_keys([topic], budget=budget(60)) == set()
    with django_assert_num_queries(1):
        [key] = load_keys([topic])[topic]
    assert key == wire.symmetric_key(wire.query_name(CLIENT.key_hash))
    sealed = bytes(TopicKey.objects.get().key_encrypted)
    assert key not in sealed
    assert keyring().decrypt(Purpose.TOPIC_KEY, sealed) == key


def test_keys_are_derived_with_the_lowest_priority():
    def priority(_):
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    [found] = set(query_topics._pool().map(priority, range(3)))
    assert found == query_topics.LOWEST_PRIORITY > os.getpriority(os.PRIO_PROCESS, 0)


def test_a_stored_key_is_not_derived_again(django_assert_num_queries):
    listen_to([CLIENT.key_hash], now=NOW)
    TopicKey.objects.update(key_encrypted=keyring().encrypt(Purpose.TOPIC_KEY, b"k" * 32))
    topic = topic_of(CLIENT.key_hash)
    with django_assert_num_queries(1):
        assert derive_keys([topic], budget=budget(60)) == set()
    assert load_keys([topic]) == {topic: [b"k" * 32]}


def test_a_key_that_no_longer_decrypts_is_derived_again():
    listen_to([CLIENT.key_hash], now=NOW)
    TopicKey.objects.update(key_encrypted=Keyring([b"\x77" * 32]).encrypt(Purpose.TOPIC_KEY, b"k" * 32))
    topic = topic_of(CLIENT.key_hash)
    assert load_keys([topic]) == {topic: [None]}
    assert derive_keys([topic], budget=budget(60)) == set()
    [key] = load_keys([topic])[topic]
    assert keyring().decrypt(Purpose.TOPIC_KEY, TopicKey.objects.get().key_encrypted) == key


def test_two_names_on_one_topic_give_the_key_that_is_known_and_then_both():
    topic = topic_of(HASHES[0])
    own, other = (wire.symmetric_key(wire.query_name(each)) for each in HASHES[:2])
    listen_to(HASHES[:1], now=NOW)
    derive_keys([topic], budget=budget(60))
    listen_to(HASHES[1:2], now=NOW)
    TopicKey.objects.update(topic=wire.topic_number(topic))
    assert load_keys([topic]) == {topic: [own, None]}
    derive_keys([topic], budget=budget(60))
    assert set(load_keys([topic])[topic]) == {own, other}


def test_unregistered_topics_have_no_keys(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert load_keys(["/waku/1/nonsense", ""]) == {}
    assert load_keys([topic_of(HASHES[0])]) == {}


def test_without_a_budget_every_key_stays_missing():
    listen_to(HASHES, now=NOW)
    wanted = {topic_of(public_key_hash) for public_key_hash in HASHES}
    assert derive_keys(wanted, budget=budget(0)) == wanted
    assert derive_newest(budget=budget(0)) == 0
    assert not TopicKey.objects.filter(key_encrypted__isnull=False).exists()


def test_a_budget_that_runs_out_leaves_the_rest_for_later():
    listen_to([bytes([n]) * 64 for n in range(3 * THREADS)], now=NOW)
    wanted = {topic_of(bytes([n]) * 64) for n in range(3 * THREADS)}
    missing = derive_keys(wanted, budget=budget(1e-9))
    assert len(missing) == 2 * THREADS
    assert {topic for topic, keys in load_keys(wanted).items() if None in keys} == missing
    assert derive_keys(missing, budget=budget(60)) == set()


def test_all_keys_of_a_call_are_stored_in_one_statement(django_assert_num_queries):
    listen_to(HASHES, now=NOW)
    with django_assert_num_queries(2):
        derive_keys([topic_of(public_key_hash) for public_key_hash in HASHES], budget=budget(60))


# In the background ----------------------------------------------------------------------------------------------------


def test_the_keys_of_the_newest_registrations_are_derived_first():
    for n in range(2 * THREADS):
        listen_to([bytes([n]) * 64], now=NOW)
    assert derive_newest(budget=budget(1e-9)) == THREADS
    newest = TopicKey.objects.order_by("-pk")
    assert all(row.key_encrypted for row in newest[:THREADS])
    assert not any(row.key_encrypted for row in newest[THREADS:])
    assert derive_newest(budget=budget(60)) == THREADS
    assert derive_newest(budget=budget(60)) == 0


# The budget -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "maximum", "steps"),
    [
        (0.25, 2.0, [(2.0, 0, 0), (0, 4, 1.0), (0, 400, 2.0)]),
        (0.5, 1.0, [(3.0, 4, 0), (0, 1, 0.5)]),  # overdrawn: it refills from below zero
        (0, 1.0, [(1.0, 1000, 0), (1e-4, 0, -1e-4)]),  # without a refill it is spent once
    ],
)
def test_a_budget_begins_full_and_refills_up_to_its_maximum(share, maximum, steps):
    """Each step spends CPU time and lets seconds pass, and then so much is left."""
    clock = SimpleNamespace(now=100.0)
    budget = CpuBudget(share, maximum, lambda: clock.now)
    for spent, seconds, left in steps:
        budget.spend(spent)
        clock.now += seconds
        assert budget.left() == pytest.approx(left, abs=1e-5)
