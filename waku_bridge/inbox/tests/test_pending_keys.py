"""Envelopes with a pending key: they wait in their own state until the key is derived."""

import json
import os
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
import redis

from registrations.models import TopicKey
from tests.rig.conversation import CLIENT, EPHEMERAL, SENDER, put, query, registration, replies_to
from tests.rig.delivering import Process
from waku_bridge import tasks
from waku_bridge.codec import topics
from waku_bridge.inbox import pending_keys
from waku_bridge.messages import WakuMessage
from waku_bridge.models import InboundEnvelope
from waku_bridge.query_topics import CpuBudget, listen_to
from waku_bridge.query_topics.keys import THREADS

NOW = datetime(2026, 1, 1, tzinfo=UTC)
State = InboundEnvelope.State
pytestmark = pytest.mark.django_db


def registered(count):
    """Register this number of key hashes, and return their content topics."""
    hashes = [number.to_bytes(64) for number in range(count)]
    listen_to(hashes, now=NOW)
    return [topics.content_topic(topics.query_name(public_key_hash)) for public_key_hash in hashes]


def garbage(content_topic):
    return WakuMessage(os.urandom(300), content_topic, time.time_ns())


def process(*hashes):
    """Process a batch in a new process. The arguments only name the envelopes in the inbox."""
    assert set(hashes) <= set(InboundEnvelope.objects.filter(state=State.RECEIVED).values_list("hash", flat=True))
    Process().process_batch(now=NOW)


def call_back(budget=None, limit=1000):
    return pending_keys.call_back(budget=budget or CpuBudget(0, 60), limit=limit)


@pytest.fixture
def keys_queue(settings):
    """Return a function that takes the next task from the queue, by its name."""
    client = redis.Redis.from_url(settings.REDIS_URL)
    with closing(client):
        client.delete("keys")
        yield lambda: json.loads(client.brpop("keys", 10)[1])["headers"]["task"]


def states():
    return sorted(InboundEnvelope.objects.values_list("state", flat=True))


def test_a_first_query_is_processed_once_its_key_is_derived():
    process(*put(registration()))
    hashes = put(query())
    process(*hashes)
    assert replies_to(EPHEMERAL) == []
    assert InboundEnvelope.objects.get(hash=hashes[0]).state == State.PENDING_KEY
    assert call_back() == hashes
    process(*hashes)
    assert len(replies_to(EPHEMERAL)) == 1


def test_no_envelope_waits_for_the_key_of_another():
    """One message on each of many topics needs seconds of CPU time for keys. A batch spends none of it."""
    flood = [garbage(topic) for topic in registered(60)]
    process(*put(*flood[:30], registration(), *flood[30:]))
    assert len(replies_to(CLIENT)) == 1
    assert not TopicKey.objects.filter(key_encrypted__isnull=False).exists()
    assert states() == [State.PENDING_KEY] * 60 + [State.PROCESSED]


def test_a_flood_causes_only_as_many_keys_as_the_budget_allows():
    process(*put(*[garbage(topic) for topic in registered(4 * THREADS)]))
    called_back = call_back(CpuBudget(0, 1e-9))
    assert len(called_back) == TopicKey.objects.filter(key_encrypted__isnull=False).count() == THREADS
    process(*called_back)
    assert states() == [State.DROPPED] * THREADS + [State.PENDING_KEY] * 3 * THREADS


def test_the_newest_envelope_gets_its_key_first():
    [old, new] = registered(2)
    put_old = put(garbage(old), now=NOW)
    put_new = put(garbage(new), now=NOW + timedelta(seconds=1))
    process(*put_old, *put_new)
    assert call_back(limit=1) == put_new
    assert call_back(limit=1) == put_old
    assert call_back(limit=1) == []


def test_an_envelope_that_a_known_key_opens_does_not_wait_for_another_name_of_its_topic():
    process(*put(registration()))
    process(*put(query()))
    call_back()
    listen_to([b"\1" * 64], now=NOW)
    TopicKey.objects.update(topic=TopicKey.objects.order_by("pk").first().topic)
    process(*put(query(signer=SENDER)))
    assert len(replies_to(SENDER)) == 1


def test_the_periodic_task_finds_envelopes_whose_own_task_was_lost():
    process(*put(registration()))
    hashes = put(query())
    process(*hashes)
    tasks.derive_topic_keys()
    assert InboundEnvelope.objects.get(hash=hashes[0]).state == State.RECEIVED


def test_the_task_of_a_worker_derives_only_keys_that_envelopes_wait_for():
    process(*put(registration()))
    registered(3)
    [envelope_hash] = put(query())
    process(envelope_hash)
    tasks.derive_wanted_keys()
    assert InboundEnvelope.objects.get(hash=envelope_hash).state == State.RECEIVED
    assert TopicKey.objects.filter(key_encrypted__isnull=False).count() == 1


@pytest.mark.django_db(transaction=True)
def test_an_envelope_that_waits_for_a_key_schedules_its_deriving(keys_queue):
    """The task is scheduled in a thread, because the broker may hang."""
    process(*put(registration()))
    process(*put(query()))
    assert keys_queue() == "waku_bridge.tasks.derive_wanted_keys"


def test_the_periodic_task_derives_keys_before_a_message_needs_them(monkeypatch):
    monkeypatch.setattr(tasks, "KEYS_CPU_SHARE", 1e-9)
    registered(3 * THREADS)
    tasks.derive_topic_keys()
    assert TopicKey.objects.filter(key_encrypted__isnull=False).count() == THREADS
    monkeypatch.setattr(tasks, "KEYS_CPU_SHARE", 0)
    tasks.derive_topic_keys()
    assert TopicKey.objects.filter(key_encrypted__isnull=False).count() == THREADS
