"""The development node where no real node is at hand to compare: nwaku by its source, or as measured on v0.38.1.

`tests/interop/test_nodes.py` compares it with a real go-waku.
"""

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import replace
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st

from embedded.node.node import Ring, Settings
from embedded.node.server import create_app
from embedded.node.store import Archive
from embedded.node.wire import StoreQuery
from waku_bridge.codec.wire import message_hash
from waku_bridge.messages import WakuMessage

SHARD, OTHER, TOPIC = "/waku/2/rs/16/32", "/waku/2/rs/16/64", "/waku/1/0x75b8b8f6/rfc26"
MESSAGES, OTHER_MESSAGES = (f"/relay/v1/messages/%2Fwaku%2F2%2Frs%2F16%2F{shard}" for shard in (32, 64))
SUBSCRIPTIONS, STORE = "/relay/v1/subscriptions", "/store/v3/messages"
NOW_NS = 1_700_000_000_000_000_000
SECOND = 10**9
ON_SHARD = Settings(shards=(SHARD,))
Client = TestClient[Any, Any]


def run(
    scenario: Callable[..., Awaitable[None]], settings: Settings, clock: Callable[[], int] = lambda: NOW_NS
) -> None:
    """Run a scenario against a fresh node."""

    async def main() -> None:
        async with TestClient(TestServer(create_app(settings, clock_ns=clock))) as client:
            await scenario(client)

    asyncio.run(main())


def body(number: int, **fields: object) -> dict[str, object]:
    payload = b64encode(str(number).encode()).decode()
    return {"payload": payload, "contentTopic": TOPIC, "version": 1, "timestamp": NOW_NS + number, **fields}


def hash_of(number: int) -> str:
    return f"0x{message_hash(SHARD, WakuMessage(str(number).encode(), TOPIC, NOW_NS + number)).hex()}"


async def publish(client: Client, *numbers: int, **fields: object) -> None:
    for number in numbers:
        assert (await client.post(MESSAGES, json=body(number, **fields))).status == 200


async def break_node(client: Client, **faults: object) -> None:
    assert (await client.post("/dev/faults", json=faults)).status == 200


async def drained(client: Client) -> list[int]:
    return [raw["timestamp"] - NOW_NS for raw in await (await client.get(MESSAGES)).json()]


async def stored(client: Client, **query: object) -> list[str]:
    reply = await client.get(STORE, params={name: str(value) for name, value in query.items()})
    return [entry["messageHash"] for entry in (await reply.json())["messages"]]


# Relay ----------------------------------------------------------------------------------------------------------------


def test_a_message_is_read_once_exactly_as_nwaku_writes_it() -> None:
    async def scenario(client: Client) -> None:
        reply = await client.get(MESSAGES)
        assert (reply.status, await reply.read()) == (404, b"")
        for _ in "12":  # a second subscription drops nothing
            assert await (await client.post(SUBSCRIPTIONS, json=[SHARD])).text() == "OK"
            await publish(client, 1, meta="bQ==")
        assert await (await client.get(MESSAGES)).json() == [body(1, meta="bQ==", ephemeral=False, proof="")]
        assert await drained(client) == []
        await publish(client, *range(60))
        assert await drained(client) == list(range(10, 60))  # nwaku's default capacity is 50

    run(scenario, Settings())


@pytest.mark.parametrize(
    "sent",
    [b"", b"{", b"[]", *(b'{"payload": "%s"}' % text for text in (b"YWIxY", b"-_-_", b"")), b'{"contentTopic": "t"}']
    + [b'{"payload": "YWJj", "contentTopic": "t", %s}' % field for field in (b'"colour": 1', b'"version": -1')],
)
def test_a_body_that_nwaku_refuses_is_refused(sent: bytes) -> None:
    async def scenario(client: Client) -> None:
        reply = await client.post(MESSAGES, data=sent, headers={"Content-Type": "application/json"})
        assert (reply.status, await drained(client)) == (400, [])
        assert (await client.post(OTHER_MESSAGES, json=body(1))).status == 400  # not subscribed to
        assert (await client.post(SUBSCRIPTIONS, json=[TOPIC])).status == 400  # no static shard

    run(scenario, ON_SHARD)


def test_a_full_ring_drops_the_smallest_timestamp_on_any_topic_and_admits_no_equal_message() -> None:
    """As nwaku's `message_cache.nim` does. A message never drops itself, and is dropped next."""
    ring = Ring(2, [SHARD, OTHER])
    for topic, timestamp in ((SHARD, 2), (OTHER, 1), (SHARD, 3), (OTHER, 3), (SHARD, 1), ("/elsewhere", 9)):
        ring.add(topic, WakuMessage(b"x", TOPIC, timestamp))
    assert len(ring) == 2
    assert [message.timestamp_ns for message in ring.drain(SHARD) or ()] == [3, 1]
    assert (ring.drain(SHARD), ring.drain(OTHER), ring.drain("/elsewhere")) == ([], [], None)


def test_a_repeated_message_enters_the_ring_of_its_own_node_again_and_no_other_for_two_minutes() -> None:
    """Measured on nwaku v0.38.1."""
    at = NOW_NS

    async def scenario(client: Client) -> None:
        nonlocal at
        for _ in "12":
            await publish(client, 1)
            assert await drained(client) == [1]
        for seconds, expected in ((119, []), (1, [1])):
            at += seconds * SECOND
            await client.post("/dev/gossip", json=[{"pubsubTopic": SHARD, "message": body(1)}])
            assert await drained(client) == expected

    run(scenario, ON_SHARD, clock=lambda: at)


# Store ----------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 6), st.binary(min_size=1, max_size=1)), unique=True, max_size=25), st.data())
def test_pages_in_either_direction_hold_everything_once_and_in_order(
    entries: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    messages = [WakuMessage(payload, TOPIC, timestamp) for timestamp, payload in entries]
    hashes = [digest for _, digest in sorted((each.timestamp_ns, message_hash(SHARD, each)) for each in messages)]
    size = data.draw(st.integers(1, 7))
    with closing(Archive(None)) as archive:
        for each in messages:
            archive.insert(message_hash(SHARD, each), SHARD, each)
        forward, backward = (
            list(pages(archive, StoreQuery(page_size=size, is_forward=is_forward))) for is_forward in (True, False)
        )
    assert [digest for page in forward for digest in page] == hashes
    assert [digest for page in reversed(backward) for digest in page] == hashes
    assert all(len(page) == size for page in forward[:-1] + backward[:-1])


def pages(archive: Archive, query: StoreQuery) -> Iterator[list[bytes]]:
    while True:
        page = archive.find(query)
        yield [bytes.fromhex(entry["messageHash"][2:]) for entry in page["messages"]]
        if "paginationCursor" not in page:
            return
        query = replace(query, cursor=bytes.fromhex(page["paginationCursor"][2:]))


ELEVEN = ",".join([*(f"/a/1/{number}/b" for number in range(10)), TOPIC])


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, [1, 2, 3]),
        ({"startTime": NOW_NS + 2, "endTime": NOW_NS + 3}, [2, 3]),  # both are inclusive
        ({"pubsubTopic": OTHER}, []),
        ({"contentTopics": ELEVEN}, [1, 2, 3]),
        ({"hashes": f"{hash_of(1)},{hash_of(3)[2:]},"}, [1, 3]),
        ({"pageSize": 2, "ascending": "false"}, [2, 3]),
        ({"pageSize": -1, "cursor": hash_of(1), "startTime": "", "endTime": "0"}, [2, 3]),
        ({"contentTopics": ELEVEN, "cursor": hash_of(1)}, "INVALID_QUERY"),  # counted on pages with a cursor only
        ({"cursor": "00" * 32}, "INVALID_QUERY"),
        ({"cursor": "01" * 32}, "DRIVER_ERROR: cursor not found"),
        *[({name: "x"}, 400) for name in ("pageSize", "startTime", "endTime", "cursor", "hashes", "includeData")],
    ],
)
def test_a_query_finds_what_nwakus_store_would(query: dict[str, object], found: list[int] | str | int) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, 1, 2, 3)
        await publish(client, 4, ephemeral=True)
        for seconds in (-21, 21):  # stores of nwaku take 20 s on both sides of their clock
            await publish(client, 5, timestamp=NOW_NS + seconds * SECOND)
        if isinstance(found, list):
            assert await stored(client, **query) == list(map(hash_of, found))
            return
        reply = await client.get(STORE, params={name: str(value) for name, value in query.items()})
        is_known = f"{found}" in f"{reply.status} {await reply.text()}"
        assert (reply.status, is_known) == (found if isinstance(found, int) else 500, True)

    run(scenario, ON_SHARD)


def test_the_store_outlives_the_node_for_two_days(tmp_path: Any) -> None:
    settings = Settings(data=tmp_path / "store.sqlite3", shards=(SHARD,))

    async def publish_one_more(number: int, kept: list[int], client: Client) -> None:
        await publish(client, number)
        assert await stored(client) == list(map(hash_of, [*kept, number]))

    last = 2 * 86_400 * SECOND + 1
    run(lambda client: publish(client, 1), settings)
    for kept, number in (([1], last), ([last], last + 1)):
        run(partial(publish_one_more, number, kept), settings, clock=lambda at=NOW_NS + number: at)


# The whole node, and its faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/nothing"), ("PUT", "/health"), ("HEAD", "/health"), ("HEAD", MESSAGES)]
)
def test_unknown_paths_and_methods_are_404_without_a_text_and_connections_end(method: str, path: str) -> None:
    async def scenario(client: Client) -> None:
        reply = await client.request(method, path)
        assert (reply.status, await reply.read(), reply.headers["Connection"]) == (404, b"", "close")

    run(scenario, ON_SHARD)


CURSOR = f"{STORE}?pageSize=2&cursor={hash_of(1)}"


@pytest.mark.parametrize(
    ("fault", "path", "status", "text"),
    [
        ("starting", STORE, 404, "initializing"),
        ("store_cursor_stuck", CURSOR, 200, f'paginationCursor":"{hash_of(2)}'),
        ("store_page_empty", CURSOR, 200, '"messages":[]'),
        ("store_duplicates", CURSOR, 200, f'[{{"messageHash":"{hash_of(3)}"}},{{"messageHash":"{hash_of(3)}"}}]'),
    ],
)
def test_a_fault_strikes_as_often_as_it_is_set_to(fault: str, path: str, status: int, text: str) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, 1, 2, 3)
        usual = await (await client.get(path)).text()
        await publish(client, 1, 2, 3)
        await break_node(client, **{fault: 1})
        reply = await client.get(path)
        assert (reply.status, text in await reply.text(), text in usual) == (status, True, False)
        assert await (await client.get(path)).text() == usual

    run(scenario, Settings(shards=(SHARD, OTHER)))


@pytest.mark.parametrize("skew", [30, -30])
def test_a_wrong_clock_is_in_the_date_and_decides_what_is_stored(skew: int) -> None:
    async def scenario(client: Client) -> None:
        await break_node(client, clock_skew_ms=skew * 1000)
        date = (await client.get("/health")).headers["Date"]
        assert parsedate_to_datetime(date).timestamp() == NOW_NS / SECOND + skew
        await publish(client, 1)
        await publish(client, 2, timestamp=0)
        assert [raw["timestamp"] - NOW_NS for raw in await (await client.get(MESSAGES)).json()] == [1, skew * SECOND]
        assert len(await stored(client)) == 1

    run(scenario, ON_SHARD)
