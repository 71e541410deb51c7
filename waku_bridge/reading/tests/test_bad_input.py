"""Bad messages of every kind, all at once and between good messages, on both paths."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from django.utils import timezone

from tests.rig.conversation import PUBSUB_TOPIC
from tests.rig.rows import make_watermark
from waku_bridge.codec.limits import MAX_ENVELOPE_BYTES
from waku_bridge.codec.topics import message_hash
from waku_bridge.models import DeadLetter
from waku_bridge.reading.tests import conftest
from waku_bridge.reading.tests.conftest import FOREIGN

# Each with the path on which it can come: a query to a store names a time, so it never returns another year.
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
    """Return a message of the age that a pass over a store reads."""
    return conftest.message(*topic, seconds_ago=5, **options)


def bad_messages(path):
    return [replace(message(), **changes) for _, changes, paths in BAD if path in paths]


def reasons(path):
    return Counter(reason for reason, _, paths in BAD if path in paths)


async def dead_letters():
    return Counter(await asyncio.to_thread(lambda: list(DeadLetter.objects.values_list("reason", flat=True))))


def put(world, path, each):
    """Put a message into the node as it is, without the node's checks."""
    if path == "live":
        world.devnode.ring.add(PUBSUB_TOPIC, each)
    else:
        world.devnode.archive.insert(message_hash(PUBSUB_TOPIC, each), PUBSUB_TOPIC, each)


async def read(world, path, times):
    for _ in range(times):
        await (world.live()._read_once(world.term) if path == "live" else world.walker()._go_once(world.term))


@pytest.mark.parametrize("path", ["live", "store"])
def test_bad_messages_become_dead_letters_and_good_ones_around_them_are_taken(run, path):
    async def scenario(world):
        await asyncio.to_thread(make_watermark, node=world.url, at=timezone.now())
        largest = message(payload=bytes(MAX_ENVELOPE_BYTES))
        good = [message(), largest, message()]
        for each in [good[0], *bad_messages(path), message(FOREIGN), *good[1:]]:
            put(world, path, each)
        await read(world, path, times=2)
        assert sorted(world.new) == sorted(message_hash(PUBSUB_TOPIC, each) for each in good)
        assert await dead_letters() == reasons(path)

    run(scenario, relay_cache_capacity=100)


def test_one_hash_with_other_metadata_is_one_envelope(run):
    """Version and ephemeral are no part of the hash. The bad copy comes first."""

    async def scenario(world):
        good = message()
        for each in [replace(good, version=0), replace(good, ephemeral=True), good]:
            put(world, "live", each)
        await read(world, "live", times=1)
        assert world.new == [message_hash(PUBSUB_TOPIC, good)]
        assert await dead_letters() == Counter({"wrong_version": 1})

    run(scenario)
