"""Envelopes whose key is still to be derived step aside, and come back when it is there."""

import os
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from registrations.models import TopicKey
from tests.conversation import CLIENT, EPHEMERAL, SENDER, put, replies_to
from waku_bridge import inbound, tasks, unkeyed
from waku_bridge.codec import topics
from waku_bridge.messages import WakuMessage
from waku_bridge.models import InboundEnvelope
from waku_bridge.query_topics import CpuBudget, listen_to
from waku_bridge.query_topics.keys import THREADS
from waku_bridge.tests.test_inbound import query, registration

NOW = datetime(2026, 1, 1, tzinfo=UTC)
State = InboundEnvelope.State
pytestmark = pytest.mark.django_db


def registered(count):
    """Content topics of so many key hashes that were registered."""
    hashes = [number.to_bytes(64) for number in range(count)]
    listen_to(hashes, now=NOW)
    return [topics.content_topic(topics.query_name(public_key_hash)) for public_key_hash in hashes]


def garbage(content_topic):
    return WakuMessage(os.urandom(300), content_topic, time.time_ns())


def call_back(budget=None, limit=1000):
    return unkeyed.call_back(budget=budget or CpuBudget(0, 60), now=NOW, limit=limit)


def states():
    return sorted(InboundEnvelope.objects.values_list("state", flat=True))


def test_a_first_query_comes_back_once_its_key_is_made():
    inbound.process(put(registration()), now=NOW)
    hashes = put(query())
    processed = inbound.process(hashes, now=NOW)
    assert (processed.needs_keys, processed.reply_ids) == (True, [])
    assert InboundEnvelope.objects.get(hash=hashes[0]).state == State.UNKEYED
    assert call_back() == hashes
    assert len(inbound.process(hashes, now=NOW).reply_ids) == 1
    assert len(replies_to(EPHEMERAL)) == 1


def test_nobody_waits_for_a_key_that_another_needs():
    """One message on each of many topics asks for seconds of CPU time; a batch spends none of it."""
    flood = [garbage(topic) for topic in registered(60)]
    processed = inbound.process(put(*flood[:30], registration(), *flood[30:]), now=NOW)
    assert len(replies_to(CLIENT)) == len(processed.reply_ids) == 1
    assert not TopicKey.objects.filter(key_encrypted__isnull=False).exists()
    assert states() == [State.PROCESSED] + [State.UNKEYED] * 60


def test_a_flood_gets_only_as_many_keys_as_the_budget_allows():
    inbound.process(put(*[garbage(topic) for topic in registered(4 * THREADS)]), now=NOW)
    called_back = call_back(CpuBudget(0, 1e-9))
    assert len(called_back) == TopicKey.objects.filter(key_encrypted__isnull=False).count() == THREADS
    assert not inbound.process(called_back, now=NOW).needs_keys
    assert states() == [State.DROPPED] * THREADS + [State.UNKEYED] * 3 * THREADS


def test_who_came_last_is_served_first():
    [old, new] = registered(2)
    put_old = put(garbage(old), now=NOW)
    put_new = put(garbage(new), now=NOW + timedelta(seconds=1))
    inbound.process(put_old + put_new, now=NOW)
    assert call_back(limit=1) == put_new
    assert call_back(limit=1) == put_old
    assert call_back(limit=1) == []


def test_without_a_budget_nobody_is_called_back():
    inbound.process(put(garbage(registered(1)[0])), now=NOW)
    assert call_back(CpuBudget(0, 0)) == []
    assert states() == [State.UNKEYED]


def test_an_envelope_that_a_known_key_opens_does_not_wait_for_another_name_of_its_topic():
    inbound.process(put(registration()), now=NOW)
    inbound.process(put(query()), now=NOW)
    call_back()
    listen_to([b"\1" * 64], now=NOW)
    TopicKey.objects.update(topic=TopicKey.objects.order_by("pk").first().topic)
    assert len(inbound.process(put(query(signer=SENDER)), now=NOW).reply_ids) == 1


def test_processing_one_that_has_stepped_aside_again_does_nothing():
    hashes = put(garbage(registered(1)[0]))
    inbound.process(hashes, now=NOW)
    assert inbound.process(hashes, now=NOW) == inbound.Processed()


def test_the_background_task_finds_those_whose_task_got_lost():
    inbound.process(put(registration()), now=NOW)
    hashes = put(query())
    inbound.process(hashes, now=NOW)
    tasks.derive_topic_keys()
    assert InboundEnvelope.objects.get(hash=hashes[0]).state == State.RECEIVED


def test_the_background_task_makes_keys_before_anybody_asks(settings):
    settings.TOPIC_KEY_CPU_SHARE = 1e-9
    registered(3 * THREADS)
    tasks.derive_topic_keys()
    assert TopicKey.objects.filter(key_encrypted__isnull=False).count() == THREADS
    settings.TOPIC_KEY_CPU_SHARE = 0
    tasks.derive_topic_keys()
    assert TopicKey.objects.filter(key_encrypted__isnull=False).count() == THREADS


def test_garbage_on_a_topic_with_a_key_is_dropped_at_once():
    [topic] = registered(1)
    inbound.process(put(garbage(topic)), now=NOW)
    inbound.process(call_back(), now=NOW)
    hashes = put(replace(garbage(topic), timestamp_ns=1))
    assert not inbound.process(hashes, now=NOW).needs_keys
    assert InboundEnvelope.objects.get(hash=hashes[0]).reason == "not_decryptable"
