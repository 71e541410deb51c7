"""The parts of the load generator that need no server: targets, moments of requests, and counts of arrivals.

`tests/flows/test_commands.py` runs it against a whole server.
"""

import asyncio
import os
import time
from dataclasses import replace

import pytest
from aiohttp.test_utils import TestClient, TestServer

from embedded.figures import distribution
from embedded.gorush.server import create_app
from embedded.load import LoadRequest, PushRecord, Reply, ReplyReader, Sent, evaluate, phones_for, send_on_time
from embedded.management.commands.load import is_loopback
from kit.buckets.bucket import Limit, has, spend
from kit.http import Connections
from notifications.messages import Report
from waku_bridge.client.core import new_identity
from waku_bridge.codec.envelope import encode
from waku_bridge.dialect import NodeError, StoreEntry, StorePage, to_json
from waku_bridge.messages import PushResponse, WakuMessage

MS = 1_000_000
PHONE = b"p" * 64


@pytest.mark.parametrize(
    ("is_ours", "hosts"),
    [
        (True, ["127.0.0.1:8645", "127.9.9.9", "[::1]:8645", "localhost:8645"]),
        (
            False,
            ["node.example.org", "localhost.example.org", "127.0.0.1@node.example.org", "10.0.0.1", "10.0.0.1.org", ""],
        ),
    ],
)
def test_only_this_machine_is_put_under_load_without_a_confirmation(is_ours, hosts):
    assert {is_loopback(f"http://{host}") for host in hosts} == {is_ours}


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
        raise NodeError("away")

    async def main():
        due_ns = [time.time_ns() + (20 + number * 5) * MS for number in range(count)]
        messages = [WakuMessage(b"", "/t", number) for number in range(count)]
        return messages, await asyncio.wait_for(send_on_time(messages, due_ns, publish), 30)

    messages, sent = asyncio.run(main())
    assert arrived == messages
    assert (len(sent.lags_ms), sent.publish_ms) == (count, [])
    assert dict(sent.refused) == dict.fromkeys(messages, "unreachable")
    assert min(sent.lags_ms) >= 0


def load_requests(*due_ms):
    return [LoadRequest(f"{number:064x}", ms * MS, PHONE.hex(), None, None) for number, ms in enumerate(due_ms)]


def at(number, at_ms):
    return f"{number:064x}", at_ms * MS


def woken(at_ms):
    return PHONE.hex(), at_ms * MS


def replied(number, *, is_success=True):
    return Reply(f"{number:064x}", is_success, 5 * MS)


@pytest.mark.parametrize(
    ("due_ms", "answered", "pushes", "expected"),
    [  # expected: arrived, lost and doubled pushes, lost replies, merged, refused
        ((0, 1), (True, True), [at(0, 7), at(1, 8)], (2, 0, 0, 0, 0, 0)),
        ((0, 1, 2), (True, False, None), [at(0, 7), at(0, 3), at(9, 1)], (1, 1, 1, 1, 0, 1)),  # 9 is no request of ours
        ((0, 100, 200), (True, True, True), [at(2, 210)], (1, 2, 0, 0, 0, 0)),
        ((0, 100, 200), (True, True, True), [at(2, 210), woken(50)], (1, 1, 0, 0, 1, 0)),  # the second was due later
        ((0, 100, 200), (True, True, True), [at(2, 210), woken(50), woken(150)], (1, 0, 0, 0, 2, 0)),
        ((0,), (None,), [woken(5)], (0, 1, 0, 1, 0, 0)),  # a wake-up excuses no request without an answer
        ((0,), (True,), None, (None, None, None, 0, 0, 0)),  # that gorush keeps no record, and has lost nothing
    ],
)
def test_what_arrived_was_lost_doubled_merged_or_refused_is_counted(due_ms, answered, pushes, expected):
    replies = [replied(number, is_success=each) for number, each in enumerate(answered) if each is not None]
    result = evaluate(load_requests(*due_ms), Sent(), [*replies, replied(9)], pushes)
    counted = [getattr(result.pushes, name, None) for name in ("arrived", "lost", "doubled")]
    assert (*counted, result.replies.lost, result.merged, sum(result.refused.values())) == expected
    assert result.is_clean == (not any(expected[1:4]))


def test_latency_counts_from_the_moment_a_request_was_due_and_a_refused_request_is_not_lost():
    """The generator was a second late with the second request. A sender would have waited for that second, too."""
    requests = load_requests(0, 100, 200)
    sent = Sent(lags_ms=[0.0, 1000.0], refused=[(requests[2], "unreachable")])
    result = evaluate(requests, sent, [replied(0), replied(1)], [at(0, 10), at(1, 1110)])
    assert (result.pushes.latency_ms.p50, result.pushes.latency_ms.max) == (10, 1010)
    assert (result.refused, result.pushes.lost, result.replies.lost, result.is_clean) == (
        {"unreachable": 1},
        0,
        0,
        True,
    )


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


def test_a_push_is_identified_by_its_ciphertext_or_its_recipient_and_forgotten_ones_are_not_read():
    old, *new = (
        {"e": "old"},
        {"encryptedMessage": "0x0a0b"},
        {"e": "AAAA"},
        {"encryptedMessage": "0x", "publicKey": "0x0c"},
    )

    async def main():
        async with TestClient(TestServer(create_app())) as gorush, Connections(silent_seconds=30) as client:

            async def push(*sent_data):
                for data in sent_data:
                    note = {"platform": 2, "tokens": ["ok-1"], "data": data}
                    assert (await gorush.post("/api/push", json={"notifications": [note]})).status == 200

            record = PushRecord(str(gorush.make_url("")), client)
            await push(old)
            await record.skip()
            await push(*new)
            return await record.read()

    assert [identifier for identifier, _ in asyncio.run(main())] == ["0a0b", "AAAA", "0c"]


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
    sealed = {"recipient": recipient.pub33, "timestamp_ns": 1, "random_bytes": os.urandom}
    return encode(response, signer=new_identity(os.urandom), **sealed).message


def test_answers_to_other_senders_on_the_same_topic_do_not_count_for_the_load():
    sender, outsider, store = new_identity(os.urandom), new_identity(os.urandom), Store()
    reader = ReplyReader(store, "/shard", [sender])
    topic = answer(b"1", sender).content_topic
    store.hold(*(replace(answer(each, outsider), content_topic=topic) for each in (b"1", b"2")), answer(b"1", sender))
    asyncio.run(reader.read())
    assert not reader.has_all([b"1".hex(), b"2".hex()])
    store.hold(*([answer(b"0", sender)] * 3), answer(b"2", sender))
    asyncio.run(reader.read())
    assert reader.has_all([b"1".hex(), b"2".hex()])
