"""Bad messages of every kind, between good messages, and memory of the hashes that were read."""

import asyncio
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest
from django.utils import timezone

from tests.rig.conversation import PUBSUB_TOPIC
from tests.rig.rows import make_watermark
from waku_bridge.codec import wire
from waku_bridge.codec.wire import MAX_ENVELOPE_BYTES, message_hash
from waku_bridge.dialect import to_json
from waku_bridge.messages import WakuMessage
from waku_bridge.models import DeadLetter
from waku_bridge.query_topics import own_content_topics, server_identity
from waku_bridge.reading.pages import Page, Reader, SeenHashes
from waku_bridge.reading.tests import conftest
from waku_bridge.reading.tests.conftest import FOREIGN, PERSONAL, QUERIED

PARTITIONED = wire.content_topic(wire.partitioned_name(server_identity().pub33))
SECOND, DAY = 10**9, 86_400 * 10**9
NOW_NS = time.time_ns() // SECOND * SECOND
MESSAGE = WakuMessage(b"payload", PERSONAL, NOW_NS)
TOPICS = own_content_topics() | {QUERIED}


def selected(*messages):
    page = Page(Reader("live", "http://node", PUBSUB_TOPIC), datetime.fromtimestamp(NOW_NS // SECOND, UTC), [*messages])
    page.select(TOPICS, keep=timedelta(days=3))
    return page


def raw(**fields):
    return to_json(replace(MESSAGE, **fields))


@pytest.mark.parametrize("content_topic", [PERSONAL, PARTITIONED, QUERIED])
def test_a_message_on_a_topic_of_ours_is_selected_with_its_hash(content_topic):
    assert own_content_topics() == {PERSONAL, PARTITIONED}
    message = replace(MESSAGE, content_topic=content_topic)
    [envelope] = selected(to_json(message)).envelopes
    assert (envelope.message, envelope.hash) == (message, message_hash(PUBSUB_TOPIC, message))


def test_messages_on_other_topics_are_not_decoded():
    found = selected({"contentTopic": FOREIGN, "payload": "no base64"}, raw(content_topic=FOREIGN))
    assert (found.envelopes, found.rejected) == ([], [])


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (None, "malformed"),
        ("text", "malformed"),
        ({}, "malformed"),
        ({"contentTopic": 5}, "malformed"),
        ({"contentTopic": PERSONAL, "payload": ["x"]}, "malformed"),
        (raw() | {"payload": "no base64!"}, "malformed"),
        (raw() | {"payload": None}, "wrong_size"),
        (raw() | {"timestamp": 2**64}, "malformed"),
        (raw() | {"timestamp": "soon"}, "malformed"),
        (raw(version=0), "wrong_version"),
        (raw(version=2), "wrong_version"),
        (raw(payload=b""), "wrong_size"),
        (raw(payload=bytes(MAX_ENVELOPE_BYTES + 1)), "wrong_size"),
        (raw(timestamp_ns=0), "wrong_time"),
        (raw(timestamp_ns=-(2**63)), "malformed"),
        (raw(timestamp_ns=1 - 2**63), "wrong_time"),
        (raw(timestamp_ns=NOW_NS - 3 * DAY - SECOND), "wrong_time"),
        (raw(timestamp_ns=NOW_NS + DAY + SECOND), "wrong_time"),
        (raw(timestamp_ns=2**63 - 1), "wrong_time"),
    ],
)
def test_a_broken_message_does_not_stop_the_rest_of_its_page(broken, reason):
    found = selected(raw(timestamp_ns=NOW_NS - 1), broken, raw(timestamp_ns=NOW_NS - 2))
    assert [envelope.message.timestamp_ns for envelope in found.envelopes] == [NOW_NS - 1, NOW_NS - 2]
    assert found.rejected == [(broken, reason)]


@pytest.mark.parametrize(
    "odd", [{"timestamp_ns": NOW_NS - 3 * DAY}, {"timestamp_ns": NOW_NS + DAY}, {"payload": bytes(MAX_ENVELOPE_BYTES)}]
)
def test_odd_but_valid_messages_are_selected(odd):
    assert len(selected(raw(**odd)).envelopes) == 1


def test_each_message_is_checked_also_when_its_hash_comes_twice():
    """Version is no part of the hash, so a copy with another version must not hide the real message."""
    found = selected(raw(version=0), raw(version=1), raw(ephemeral=True), {"contentTopic": 5})
    assert len({envelope.hash for envelope in found.envelopes}) == 1
    assert len(found.envelopes) == 2
    assert [reason for _, reason in found.rejected] == ["wrong_version", "malformed"]


@pytest.mark.parametrize(("chunks", "added", "first"), [(100, 95, 0), (3, 110, 80)])
def test_hashes_are_remembered_across_chunks_and_the_oldest_are_forgotten_first(chunks, added, first):
    seen, hashes = SeenHashes(chunk=10, chunks=chunks), [sha256(number.to_bytes(4)).digest() for number in range(1095)]
    for start in range(0, added, 5):
        seen.add(hashes[start : start + 5])
    assert all(each in seen for each in hashes[first:added])
    assert not any(each in seen for each in hashes[: max(first - 10, 0)] + hashes[added:])


# Read from a node -----------------------------------------------------------------------------------------------------


# Each with the paths on which it can come: a query to a store names a time, so it never returns another year.
BAD = [
    ("wrong_size", {"payload": b""}, {"live", "store"}),
    ("wrong_size", {"payload": bytes(MAX_ENVELOPE_BYTES + 1)}, {"live", "store"}),
    ("wrong_version", {"version": 0}, {"live", "store"}),
    ("wrong_version", {"version": 2**32 - 1}, {"live", "store"}),
    ("wrong_time", {"timestamp_ns": 0}, {"live"}),
    ("wrong_time", {"timestamp_ns": 2**63 - 1}, {"live"}),
    ("malformed", {"timestamp_ns": -(2**63)}, {"live"}),
]


def message(*topic, **options):
    """Return a message of an age that the fast tier reads."""
    return conftest.message(*topic, seconds_ago=5, **options)


async def read(world, path, *messages):
    """Put messages into the node as they are, without its checks, and read them twice."""
    world.devnode.ring.capacity = 100
    await asyncio.to_thread(make_watermark, node=world.url, at=timezone.now() - timedelta(seconds=30))
    for each in messages:
        if path == "live":
            world.devnode.ring.add(PUBSUB_TOPIC, each)
        else:
            world.archive(each)
    for _ in range(2):
        await (world.read() if path == "live" else world.walk())


async def dead_letters():
    return Counter(await asyncio.to_thread(lambda: list(DeadLetter.objects.values_list("reason", "path"))))


@pytest.mark.parametrize("path", ["live", "store"])
async def test_bad_messages_become_dead_letters_and_good_ones_around_them_are_taken(world, path):
    good = [message(), message(payload=bytes(MAX_ENVELOPE_BYTES)), message()]
    bad = [replace(message(), **changes) for _, changes, paths in BAD if path in paths]
    await read(world, path, good[0], *bad, message(FOREIGN), *good[1:])
    assert sorted(world.new) == sorted(message_hash(PUBSUB_TOPIC, each) for each in good)
    assert await dead_letters() == Counter((reason, path) for reason, _, paths in BAD if path in paths)


async def test_one_hash_with_other_metadata_is_one_envelope(world):
    """Version and ephemeral are no part of the hash. The bad copy comes first."""
    good = message()
    await read(world, "live", replace(good, version=0), replace(good, ephemeral=True), good)
    assert world.new == [message_hash(PUBSUB_TOPIC, good)]
    assert await dead_letters() == {("wrong_version", "live"): 1}
