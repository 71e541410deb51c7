"""The inbox: each envelope is stored once, and waits in a state of its own while the key of its topic is pending."""

import json
import os
import threading
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
import redis
from kombu.exceptions import OperationalError

from pushserver.celery import app
from pushserver.console import tasks as console_tasks
from registrations.models import TopicKey
from tests.rig.conversation import CLIENT, EPHEMERAL, SENDER, put, query, registration, replies_to
from tests.rig.delivering import Process
from tests.rig.logs import capture_logs
from waku_bridge import tasks
from waku_bridge.codec import wire
from waku_bridge.inbox import inbox
from waku_bridge.messages import Envelope, WakuMessage
from waku_bridge.models import InboundEnvelope
from waku_bridge.query_topics import THREADS, CpuBudget, listen_to

NOW = datetime(2026, 1, 1, tzinfo=UTC)
State = InboundEnvelope.State
pytestmark = pytest.mark.django_db


def registered(count):
    """Register this number of key hashes, and return their content topics."""
    hashes = [number.to_bytes(64) for number in range(count)]
    listen_to(hashes, now=NOW)
    return [wire.content_topic(wire.query_name(public_key_hash)) for public_key_hash in hashes]


def garbage(content_topic):
    return WakuMessage(os.urandom(300), content_topic, time.time_ns())


def process(*messages, now=NOW):
    """Process messages in a batch of a new process, and return their hashes."""
    hashes = put(*messages, now=now)
    Process().process_batch(now=NOW)
    return hashes


def call_back(budget=None, limit=1000):
    return inbox.derive_needed_keys(budget=budget or CpuBudget(0, 60), limit=limit)


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
    process(registration())
    hashes = process(query())
    assert replies_to(EPHEMERAL) == []
    assert InboundEnvelope.objects.get(hash=hashes[0]).state == State.PENDING_KEY
    assert call_back() == hashes
    process()
    assert len(replies_to(EPHEMERAL)) == 1


def test_no_envelope_waits_for_the_key_of_another():
    """One message on each of many topics needs seconds of CPU time for keys. A batch spends none of it."""
    flood = [garbage(topic) for topic in registered(60)]
    process(*flood[:30], registration(), *flood[30:])
    assert len(replies_to(CLIENT)) == 1
    assert not TopicKey.objects.filter(key_encrypted__isnull=False).exists()
    assert states() == [State.PENDING_KEY] * 60 + [State.PROCESSED]


def test_a_flood_causes_only_as_many_keys_as_the_budget_allows():
    process(*map(garbage, registered(4 * THREADS)))
    assert len(call_back(CpuBudget(0, 1e-9))) == TopicKey.objects.filter(key_encrypted__isnull=False).count() == THREADS
    process()
    assert states() == [State.DROPPED] * THREADS + [State.PENDING_KEY] * 3 * THREADS


def test_the_newest_envelope_gets_its_key_first():
    [old, new] = registered(2)
    put_old, put_new = process(garbage(old)), process(garbage(new), now=NOW + timedelta(seconds=1))
    assert call_back(limit=1) == put_new
    assert call_back(limit=1) == put_old
    assert call_back(limit=1) == []


def test_an_envelope_that_a_known_key_opens_does_not_wait_for_another_name_of_its_topic():
    process(registration())
    process(query())
    call_back()
    listen_to([b"\1" * 64], now=NOW)
    TopicKey.objects.update(topic=TopicKey.objects.order_by("pk").first().topic)
    process(query(signer=SENDER))
    assert len(replies_to(SENDER)) == 1


@pytest.mark.parametrize(("task", "derived"), [(tasks.derive_topic_keys, 4), (tasks.derive_wanted_keys, 1)])
def test_tasks_find_envelopes_that_wait_and_that_of_a_worker_derives_no_other_keys(task, derived):
    process(registration())
    registered(3)
    [envelope_hash] = process(query())
    task()
    assert InboundEnvelope.objects.get(hash=envelope_hash).state == State.RECEIVED
    assert TopicKey.objects.filter(key_encrypted__isnull=False).count() == derived


@pytest.mark.django_db(transaction=True)
def test_an_envelope_that_waits_for_a_key_schedules_its_deriving(keys_queue):
    """The task is scheduled in a thread, because the broker may hang."""
    process(registration())
    process(query())
    assert keys_queue() == "waku_bridge.tasks.derive_wanted_keys"


def test_the_periodic_task_derives_keys_before_a_message_needs_them(monkeypatch):
    monkeypatch.setattr(tasks, "KEYS_CPU_SHARE", 1e-9)
    registered(3 * THREADS)
    tasks.derive_topic_keys()
    assert TopicKey.objects.filter(key_encrypted__isnull=False).count() == THREADS
    monkeypatch.setattr(tasks, "KEYS_CPU_SHARE", 0)
    tasks.derive_topic_keys()
    assert TopicKey.objects.filter(key_encrypted__isnull=False).count() == THREADS


# Tasks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "task",
    [
        tasks.derive_topic_keys,
        tasks.derive_wanted_keys,
        console_tasks.check_nodes,
        console_tasks.run_waku_canary,
        tasks.purge,
    ],
)
def test_no_task_is_repeated_because_the_next_one_follows(task):
    assert task.autoretry_for == ()


@pytest.mark.parametrize("task", [tasks.derive_topic_keys, tasks.derive_wanted_keys])
def test_keys_are_not_derived_in_the_workers_of_batches(task):
    assert app.amqp.router.route({}, task.name)["queue"].name == "keys"


@pytest.mark.django_db(transaction=True)
def test_while_the_broker_is_unreachable_the_process_derives_the_keys_itself(monkeypatch):
    """One run after the other, in a thread and within the budget, until no envelope waits or the broker is back."""
    asked = []

    def refuse(**_options):
        asked.append(threading.current_thread().name)
        raise OperationalError

    monkeypatch.setattr(tasks.derive_wanted_keys, "apply_async", refuse)
    monkeypatch.setattr(tasks, "UNSCHEDULED_SECONDS", 0.0)
    process = Process()
    with capture_logs() as logs:
        for message in (registration(), query()):
            put(message)
            process.process_batch()
        with tasks.ASKING_FOR_KEYS:
            process.process_batch()
    assert len(replies_to(EPHEMERAL)) == 1
    assert asked == ["want-keys"] * 2
    assert [entry["event"] for entry in logs].count("keys_not_scheduled") == 1


# Storing --------------------------------------------------------------------------------------------------------------


SHARD = "/waku/2/rs/16/32"


def envelope(number, **fields):
    message = {"payload": b"payload", "content_topic": "/waku/1/0x01020304/rfc26", "timestamp_ns": 5} | fields
    return Envelope(bytes([number]) * 32, SHARD, WakuMessage(**message))


def store(*envelopes, source="http://one"):
    return inbox.store(envelopes, source=source, now=NOW)


def test_an_envelope_is_stored_as_it_came_and_once():
    assert store(envelope(1, timestamp_ns=-(2**63))) == [b"\x01" * 32]
    row = InboundEnvelope.objects.get()
    assert (bytes(row.hash), row.pubsub_topic, row.content_topic) == (b"\x01" * 32, SHARD, "/waku/1/0x01020304/rfc26")
    assert (bytes(row.payload), row.timestamp_ns, row.source) == (b"payload", -(2**63), "http://one")
    assert (row.state, row.received_at) == (State.RECEIVED, NOW)
    store(envelope(2))
    assert store(envelope(2), envelope(3), envelope(3), source="http://two") == [b"\x03" * 32]
    assert InboundEnvelope.objects.get(hash=b"\x02" * 32).source == "http://one"


@pytest.mark.parametrize(("size", "statements"), [(0, 0), (200, 1)])
def test_a_page_costs_one_statement_and_an_empty_one_none(size, statements, django_assert_num_queries):
    with django_assert_num_queries(statements):
        assert len(store(*map(envelope, range(size)))) == size
