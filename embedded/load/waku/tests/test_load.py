"""Tests of the parts that need no server: permitted targets, the moments of requests, and the counts of arrivals."""

import asyncio
import os
import time
from dataclasses import replace

import pytest
from aiohttp.test_utils import TestClient, TestServer

from embedded.gorush.gateway import Settings
from embedded.gorush.http.server import create_app
from embedded.load.waku import (
    LoadRequests,
    ReplyReader,
    Sent,
    evaluate,
    is_loopback,
    phones_for,
    publish_on_time,
    pushes_recorded,
)
from kit.buckets.bucket import Limit, has, spend
from kit.figures import distribution
from kit.http.connections import new_client
from notifications.messages import Report
from waku_bridge.client.core import new_identity
from waku_bridge.codec.envelope import encode_reply
from waku_bridge.messages import PushResponse, WakuMessage
from waku_bridge.node import NodeError
from waku_bridge.node.dialect import StoreEntry, StorePage, to_json

MS = 1_000_000
PHONE = b"p" * 64


@pytest.mark.parametrize(
    ("url", "is_ours"),
    [
        ("http://127.0.0.1:8645", True),
        ("http://127.9.9.9", True),
        ("http://[::1]:8645", True),
        ("http://localhost:8645", True),
        ("http://node.example.org:8645", False),
        ("http://localhost.example.org", False),
        ("http://127.0.0.1@node.example.org", False),
        ("http://10.0.0.1", False),
        ("http://0.0.0.0:8645", False),
        ("", False),
    ],
)
def test_only_this_machine_is_put_under_load_without_a_confirmation(url, is_ours):
    assert is_loopback(url) == is_ours


def test_percentiles_are_measured_values_and_the_histogram_holds_all():
    found = distribution([float(value) for value in range(1, 101)])
    assert (found.p50, found.p90, found.p99, found.max) == (50, 90, 99, 100)
    assert found.histogram == ((1, 1), (2, 1), (5, 3), (10, 5), (20, 10), (50, 30), (100, 50))
    assert distribution([70_000.0]).histogram == ((None, 1),)
    assert distribution([]) is None


def test_requests_leave_at_their_moments_however_long_the_node_takes():
    """The node answers nothing until the last request has come. A closed loop would never send a second one."""
    count, arrived = 20, []
    everybody_is_here = asyncio.Event()

    async def publish(message):
        arrived.append(message)
        if len(arrived) == count:
            everybody_is_here.set()
        await everybody_is_here.wait()

    async def main():
        begin_ns = time.time_ns() + 20 * MS
        messages = [WakuMessage(b"", "/t", number) for number in range(count)]
        due_ns = [begin_ns + number * 5 * MS for number in range(count)]
        return messages, await asyncio.wait_for(publish_on_time(messages, due_ns, publish, lambda: None), 30)

    messages, sent = asyncio.run(main())
    assert arrived == messages
    assert (len(sent.lags_ms), len(sent.publish_ms), sent.max_in_flight) == (count, count, count)
    assert min(sent.lags_ms) >= 0


def test_a_request_that_the_node_refuses_is_counted_by_its_error_code():
    async def publish(_message):
        raise NodeError("away")

    async def main():
        return await publish_on_time([WakuMessage(b"", "/t", 0)] * 3, [time.time_ns()] * 3, publish, lambda: None)

    sent = asyncio.run(main())
    assert (sent.refused, sent.publish_ms) == ({"unreachable": 3}, [])


def load_requests(*due_ms):
    ids = [bytes([number]) * 32 for number in range(len(due_ms))]
    return LoadRequests(ids, [ms * MS for ms in due_ms], [], (), [PHONE] * len(ids), build_seconds=0.001)


def arrival(number, at_ms):
    return bytes([number]) * 32, at_ms * MS


def test_latency_counts_from_the_moment_a_request_was_due_not_from_when_it_was_sent():
    """The generator was a second late with the second request. A sender would have waited for that second, too."""
    sent = Sent(lags_ms=[0.0, 1000.0], publish_ms=[1.0, 1.0], wall_seconds=2)
    result = evaluate(load_requests(0, 100), sent, [], [arrival(0, 10), arrival(1, 1110)])
    assert (result.pushes.latency_ms.p50, result.pushes.latency_ms.max) == (10, 1010)


def test_losses_and_duplicates_are_counted_and_other_messages_are_not():
    replies = [(*arrival(0, 5)[:1], True, 5 * MS), (*arrival(1, 5)[:1], False, 9 * MS), (*arrival(9, 5)[:1], True, 9)]
    pushes = [arrival(0, 7), arrival(0, 3), arrival(9, 1)]
    result = evaluate(load_requests(0, 1, 2), Sent(wall_seconds=1), replies, pushes)
    assert (result.pushes.arrived, result.pushes.lost, result.pushes.doubled) == (1, 1, 1)
    assert result.pushes.latency_ms.max == 3  # of the first push
    assert (result.replies.arrived, result.replies.lost, result.replies.doubled, result.refused) == (2, 1, 0, 1)
    assert not result.is_clean


@pytest.mark.parametrize(
    ("woken_ms", "merged", "lost"),
    [((), 0, 2), ((50,), 1, 1), ((50, 150), 2, 0)],  # the second message is due after the first wake-up
)
def test_a_request_whose_phone_gets_a_later_wake_up_is_merged_and_without_one_it_is_lost(woken_ms, merged, lost):
    replies = [(message_id, True, at_ns) for message_id, at_ns in (arrival(0, 5), arrival(1, 105), arrival(2, 205))]
    pushes = [arrival(2, 210), *((PHONE, ms * MS) for ms in woken_ms)]
    result = evaluate(load_requests(0, 100, 200), Sent(wall_seconds=1), replies, pushes)
    assert (result.merged, result.pushes.arrived, result.pushes.lost, result.refused) == (merged, 1, lost, 0)
    assert result.is_clean == (not lost)


def test_a_wake_up_excuses_no_request_without_an_answer():
    result = evaluate(load_requests(0), Sent(wall_seconds=1), [], [(PHONE, 5 * MS)])
    assert (result.merged, result.pushes.lost, result.replies.lost) == (0, 1, 1)


def test_refused_requests_are_told_apart_from_lost_ones():
    sent = Sent(refused={"unreachable": 1}, not_sent=[0], wall_seconds=1)
    result = evaluate(load_requests(0, 1), sent, [(arrival(1, 5)[0], False, 5 * MS)], [])
    assert (result.refused, result.merged, result.pushes.lost, result.replies.lost) == (2, 0, 0, 0)
    assert result.is_clean


@pytest.mark.parametrize(
    ("rate", "seconds", "phones"),
    [(300, 20, 100), (300, 5, 50), (3, 10, 1), (3.1, 10, 2), (1, 7200, 6), (0.01, 1, 1)],
)
def test_a_load_has_as_many_phones_as_its_rate_needs_by_the_limits_of_an_address(rate, seconds, phones):
    limits = (Limit(30, 10.0), Limit(600, 3600.0))
    assert phones_for(rate, seconds, limits) == phones
    full_at = ()
    for number in range(round(rate * seconds / phones)):
        at = number * phones / rate
        assert has(full_at, limits, now=at)
        full_at = spend(full_at, limits, now=at)


def test_a_gorush_without_a_record_is_no_gorush_that_lost_everything():
    result = evaluate(load_requests(0), Sent(wall_seconds=1), [(*arrival(0, 0)[:1], True, 1 * MS)], None)
    assert result.pushes is None
    assert result.is_clean


def test_pushes_of_other_bridges_do_not_count_for_the_load():
    async def main():
        async with TestClient(TestServer(create_app(Settings()))) as gorush, new_client(timeout_seconds=30) as client:
            for data in (
                {"encryptedMessage": "0x0a0b"},
                {"e": "AAAA"},
                {"encryptedMessage": "0x", "publicKey": "0x0c"},
            ):
                note = {"platform": 2, "tokens": ["ok-1"], "data": data}
                assert (await gorush.post("/api/push", json={"notifications": [note]})).status == 200
            return await pushes_recorded(str(gorush.make_url("")), client, since=0)

    pushes, since = asyncio.run(main())
    assert ([carried for carried, _ in pushes], since) == ([b"\x0a\x0b", b"\x0c"], 3)


class Store:
    """A store that has one page of messages."""

    def __init__(self):
        self.page = StorePage((), "")

    def hold(self, *messages):
        entries = tuple(StoreEntry(bytes([n]) * 32, message=to_json(message)) for n, message in enumerate(messages))
        self.page = StorePage(entries, "")

    async def store_page(self, **_params):
        return self.page


def answer(message_id, recipient):
    response = PushResponse(message_id, (Report(bytes(64), "phone", success=True),))
    return encode_reply(
        response, identity=new_identity(os.urandom), recipient=recipient.pub33, timestamp_ns=1, random_bytes=os.urandom
    )


def test_answers_to_other_senders_on_the_same_topic_do_not_count_for_the_load():
    sender, outsider, store = new_identity(os.urandom), new_identity(os.urandom), Store()
    reader = ReplyReader(store, "/shard", [sender])
    topic = answer(b"1", sender).content_topic
    store.hold(*(replace(answer(each, outsider), content_topic=topic) for each in (b"1", b"2")), answer(b"1", sender))
    asyncio.run(reader.read_again())
    assert (reader.count, reader.unanswered([b"1", b"2"])) == (3, 1)
    store.hold(*([answer(b"0", sender)] * 3), answer(b"2", sender))
    asyncio.run(reader.read_again())
    assert reader.unanswered([b"1", b"2"]) == 0
