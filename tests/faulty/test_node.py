"""Faults of the development node as a program sees them through REST. nwaku's are by its source unless measured."""

import asyncio
import time
from base64 import b64encode, urlsafe_b64encode
from email.utils import parsedate_to_datetime
from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer, unused_port

from embedded.node.settings import Settings
from tests.faulty.node import create_app
from tests.faulty.node_faults import NAMES
from waku_bridge.codec.topics import message_hash
from waku_bridge.messages import WakuMessage

SHARD, TOPIC = "/waku/2/rs/16/32", "/waku/1/0x75b8b8f6/rfc26"
MESSAGES = "/relay/v1/messages/%2Fwaku%2F2%2Frs%2F16%2F32"
SUBSCRIPTIONS, STORE = "/relay/v1/subscriptions", "/store/v3/messages"
ON_SHARD = Settings(shards=(SHARD,))
NOW_NS = 1_700_000_000_000_000_000


@pytest.fixture
def run():
    """Return ``run(scenario)`` and ``run(scenario, Settings(...))``, which run a scenario against a fresh node."""

    def run_scenario(scenario, settings=None):
        async def main():
            app = create_app(settings or Settings(), clock_ns=lambda: NOW_NS)
            async with TestClient(TestServer(app)) as client:
                await scenario(client)

        asyncio.run(main())

    return run_scenario


def message(number: int, **fields: object) -> dict[str, object]:
    payload = b64encode(str(number).encode()).decode()
    return {"payload": payload, "contentTopic": TOPIC, "version": 1, "timestamp": NOW_NS + number, **fields}


def hash_of(number: int) -> bytes:
    return message_hash(SHARD, WakuMessage(str(number).encode(), TOPIC, NOW_NS + number))


async def faults(client, **switches: object) -> None:
    assert (await client.post("/dev/faults", json=switches)).status == 200


async def publish(client, *numbers: int) -> None:
    for number in numbers:
        assert (await client.post(MESSAGES, json=message(number))).status == 200


async def ring(client) -> list[int]:
    page = await (await client.get(MESSAGES)).json()
    return [raw["timestamp"] - NOW_NS for raw in page]


async def store(client, **parameters: object) -> dict:
    return await (await client.get(STORE, params=parameters)).json()


async def stored(client) -> int:
    return len((await store(client, pageSize=100))["messages"])


def test_every_switch_is_named_in_a_test():
    """A fault that no test switches on may have stopped striking long ago."""
    texts = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [name for name in sorted(NAMES) if name not in texts] == []


# The ring -------------------------------------------------------------------------------------------------------------


def test_a_smaller_ring_evicts_at_once_and_a_larger_one_brings_nothing_back(run):
    async def scenario(client):
        await publish(client, 1, 2, 3, 4)
        await faults(client, ring_capacity_messages=2)
        await publish(client, 5)
        await faults(client, ring_capacity_messages=0)
        await publish(client, 6)
        assert await ring(client) == [4, 5, 6]
        assert (await (await client.get("/dev/stats")).json())["evicted"] == 3

    run(scenario, ON_SHARD)


def test_a_restart_keeps_the_size_of_the_ring(run):
    async def scenario(client):
        await faults(client, ring_capacity_messages=1, restart=True)
        await publish(client, 1, 2)
        assert await ring(client) == [2]

    run(scenario, ON_SHARD)


# Subscribing and publishing -------------------------------------------------------------------------------------------


def test_a_failed_subscription_answers_ok_and_receives_nothing_until_it_is_cancelled(run):
    async def scenario(client):
        await faults(client, subscribe_fails=1)
        assert (await client.post(SUBSCRIPTIONS, json=[SHARD])).status == 500
        assert (await client.post(SUBSCRIPTIONS, json=[SHARD])).status == 200
        await publish(client, 1)
        assert await ring(client) == []
        await client.delete(SUBSCRIPTIONS, json=[SHARD])
        assert (await client.post(SUBSCRIPTIONS, json=[SHARD])).status == 200
        await publish(client, 2)
        assert await ring(client) == [2]

    run(scenario)


def test_a_publish_that_fails_sends_nothing(run):
    async def scenario(client):
        await faults(client, publish_fails=1)
        assert (await client.post(MESSAGES, json=message(1))).status == 500
        assert (await ring(client), await stored(client)) == ([], 0)
        await publish(client, 1)
        assert (await ring(client), await stored(client)) == ([1], 1)

    run(scenario, ON_SHARD)


# The whole node -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [MESSAGES, STORE, "/anything"])
def test_a_starting_node_answers_404_with_a_text_to_all_but_health_and_info(run, path):
    async def scenario(client):
        await faults(client, starting=True)
        reply = await client.get(path)
        assert (reply.status, "initializing" in await reply.text()) == (404, True)
        assert (await (await client.get("/health")).json())["nodeHealth"] == "INITIALIZING"
        assert (await client.get("/version")).status == 200
        await faults(client, starting=False)
        assert (await (await client.get("/health")).json())["nodeHealth"] == "READY"

    run(scenario, ON_SHARD)


def test_starting_drains_nothing(run):
    async def scenario(client):
        await publish(client, 1)
        await faults(client, starting=1)
        assert (await client.get(MESSAGES)).status == 404
        assert await ring(client) == [1]

    run(scenario, ON_SHARD)


@pytest.mark.parametrize("skew", [30, -30])
def test_a_wrong_clock_affects_date_filled_in_times_and_admission_to_the_store(run, skew):
    async def scenario(client):
        await faults(client, clock_skew_ms=skew * 1000)
        date = parsedate_to_datetime((await client.get("/health")).headers["Date"])
        assert date.timestamp() == NOW_NS / 10**9 + skew
        await publish(client, 1)
        await client.post(MESSAGES, json={"payload": "YWJj", "contentTopic": TOPIC})
        (filled_in,) = (await store(client, includeData="true"))["messages"]
        assert filled_in["message"]["timestamp"] == NOW_NS + skew * 10**9

    run(scenario, ON_SHARD)


# The store ------------------------------------------------------------------------------------------------------------


def test_the_store_can_lose_everything_and_its_cursors(run):
    async def scenario(client):
        await publish(client, 1, 2)
        cursor = (await store(client, pageSize=1))["paginationCursor"]
        await faults(client, forget_store=True)
        assert await stored(client) == 0
        assert (await client.get(STORE, params={"cursor": cursor})).status == 500
        assert await ring(client) == [1, 2]

    run(scenario, ON_SHARD)


def test_a_cursor_can_be_stuck(run):
    async def scenario(client):
        await publish(client, 1, 2, 3)
        first = await store(client, pageSize=1)
        await faults(client, store_cursor_stuck=1)
        assert await store(client, pageSize=1, cursor=first["paginationCursor"]) == first
        assert await store(client, pageSize=1, cursor=first["paginationCursor"]) != first

    run(scenario, ON_SHARD)


def test_cursors_can_go_in_a_circle(run):
    async def scenario(client):
        await publish(client, 1, 2, 3)
        cursors = [(await store(client, pageSize=1))["paginationCursor"]]
        await faults(client, store_cursor_circles=True)
        for _ in range(4):
            cursors.append((await store(client, pageSize=1, cursor=cursors[-1]))["paginationCursor"])
        assert cursors == [*cursors[:2], *cursors[:2], cursors[0]]

    run(scenario, ON_SHARD)


def test_a_page_after_a_cursor_can_be_empty(run):
    async def scenario(client):
        await publish(client, 1, 2, 3)
        first = await store(client, pageSize=1)
        await faults(client, store_page_empty=1)
        empty = await store(client, pageSize=1, cursor=first["paginationCursor"])
        assert (empty["messages"], empty["paginationCursor"]) == ([], None)
        assert (await store(client, pageSize=1, cursor=first["paginationCursor"]))["messages"]

    run(scenario, ON_SHARD)


def test_a_page_can_have_a_message_twice(run):
    async def scenario(client):
        await publish(client, 1, 2)
        await faults(client, store_duplicates=1)
        hashes = [entry["messageHash"] for entry in (await store(client))["messages"]]
        assert (len(hashes), len(set(hashes))) == (3, 2)
        assert await stored(client) == 2

    run(scenario, ON_SHARD)


def test_a_store_without_a_peer_is_not_mounted_in_health(run):
    async def scenario(client):
        await faults(client, store_no_peer=True)
        assert {"Store": "NOT_MOUNTED"} in (await (await client.get("/health")).json())["protocolsHealth"]

    run(scenario, ON_SHARD)


# go-waku --------------------------------------------------------------------------------------------------------------


def test_relay_pages_in_the_words_of_go_waku(run):
    async def scenario(client):
        await faults(client, go_waku=True)
        assert await (await client.get(MESSAGES)).json() is None
        await client.post(MESSAGES, json=message(1) | {"version": 0})
        await client.post(MESSAGES, json=message(2, ephemeral=True))
        written = {"payload": "MQ==", "contentTopic": TOPIC, "timestamp": NOW_NS + 1, "ephemeral": None}
        assert await (await client.get(MESSAGES)).json() == [written, message(2, ephemeral=True)]

    run(scenario, ON_SHARD)


def test_store_pages_in_the_words_of_go_waku(run):
    async def scenario(client):
        await publish(client, 1, 2)
        await faults(client, go_waku=True)
        where = {"pubsubTopic": SHARD, "contentTopics": TOPIC, "pageSize": 1}
        first = await store(client, **where)
        assert first["messages"] == [{"message_hash": b64encode(hash_of(1)).decode()}]
        assert first["pagination_cursor"] == b64encode(hash_of(1)).decode()
        second = await store(client, **where, cursor=urlsafe_b64encode(hash_of(1)).decode())
        assert [entry["message_hash"] for entry in second["messages"]] == [b64encode(hash_of(2)).decode()]
        by_hash = await store(client, hashes=urlsafe_b64encode(hash_of(2)).decode(), includeData="true")
        assert by_hash["messages"][0]["pubsub_topic"] == SHARD
        assert (await store(client, **where, startTime=NOW_NS + 5))["messages"] is None

    run(scenario, ON_SHARD)


@pytest.mark.parametrize("query", [{}, {"pubsubTopic": SHARD}, {"hashes": "0x" + "00" * 32}, {"hashes": "?"}])
def test_a_query_that_go_waku_cannot_parse_is_400(run, query):
    async def scenario(client):
        await faults(client, go_waku=True)
        assert (await client.get(STORE, params=query)).status == 400

    run(scenario, ON_SHARD)


# As programs see them -------------------------------------------------------------------------------------------------


def test_a_reply_cut_after_the_drain_loses_the_page(run):
    async def scenario(client):
        await publish(client, 1)
        await faults(client, read_fails=1, cut_after_drain=1)
        assert (await client.get(MESSAGES)).status == 500
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await client.get(MESSAGES)
        assert await ring(client) == []

    run(scenario, ON_SHARD)


def test_a_publish_cut_without_answer_has_happened(run):
    async def scenario(client):
        await faults(client, cut_after_publish=1)
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await client.post(MESSAGES, json=message(1))
        assert await ring(client) == [1]

    run(scenario, ON_SHARD)


@pytest.mark.parametrize(
    ("fault", "status", "text"),
    [
        ("store_no_peer", 412, "No suitable service peer"),
        ("store_rate_limited", 429, "rate limit"),
        ("store_too_many_requests", 500, "TOO_MANY_REQUESTS"),
    ],
)
def test_a_store_can_refuse_a_query(run, fault, status, text):
    async def scenario(client):
        await faults(client, **{fault: 1})
        reply = await client.get(STORE)
        assert (reply.status, text in await reply.text()) == (status, True)
        assert (await client.get(STORE)).status == 200

    run(scenario)


def test_a_store_can_lose_a_cursor(run):
    async def scenario(client):
        await publish(client, 1, 2)
        cursor = {"cursor": (await store(client, pageSize=1))["paginationCursor"]}
        await faults(client, store_cursor_not_found=1)
        assert (await client.get(STORE)).status == 200
        reply = await client.get(STORE, params=cursor)
        assert (reply.status, "cursor not found" in await reply.text()) == (500, True)
        assert (await client.get(STORE, params=cursor)).status == 200

    run(scenario, ON_SHARD)


def test_a_message_can_be_delivered_live_and_not_be_stored(run):
    async def scenario(client):
        await faults(client, archive_refuses=1)
        await publish(client, 1)
        assert (await stored(client), await ring(client)) == (0, [1])

    run(scenario, ON_SHARD)


def test_a_message_can_be_stored_late_behind_a_cursor_already_passed(run):
    async def scenario(client):
        await faults(client, archive_delay_ms=300)
        await publish(client, 1)
        await faults(client, archive_delay_ms=0)
        await publish(client, 2)
        [in_time] = (await store(client))["messages"]
        await until_stored(client, 2)
        assert (await store(client, cursor=in_time["messageHash"]))["messages"] == []

    run(scenario, ON_SHARD)


def test_a_node_that_stops_before_storing_late_stops_cleanly(run):
    async def scenario(client):
        await faults(client, archive_delay_ms=20)
        await publish(client, 1)

    run(scenario, ON_SHARD)


# The switches ---------------------------------------------------------------------------------------------------------


def test_a_restart_clears_the_ring_and_the_subscriptions_but_not_the_store(run):
    async def scenario(client):
        await client.post(SUBSCRIPTIONS, json=[SHARD])
        await publish(client, 1)
        await faults(client, restart=True)
        assert ((await client.get(MESSAGES)).status, await stored(client)) == (404, 1)

    run(scenario)


def test_a_restart_keeps_the_subscriptions_of_the_command_line(run):
    async def scenario(client):
        await publish(client, 1)
        await faults(client, restart=True)
        assert await ring(client) == []

    run(scenario, ON_SHARD)


def test_faults_are_shown_set_and_cleared(run):
    async def scenario(client):
        assert not any((await (await client.get("/dev/faults")).json()).values())
        shown = await (await client.post("/dev/faults", json={"no_peers": True, "reply_delay_ms": 3})).json()
        assert (shown["no_peers"], shown["reply_delay_ms"]) == (True, 3)
        assert not any((await (await client.delete("/dev/faults")).json()).values())

    run(scenario)


@pytest.mark.parametrize("body", [b"", b"[1]", b'{"typo": true}', b'{"no_peers": "yes"}'])
def test_unknown_faults_are_refused(run, body):
    async def scenario(client):
        assert (await client.post("/dev/faults", data=body)).status == 400

    run(scenario)


def test_replies_can_be_delayed(run):
    async def scenario(client):
        await faults(client, reply_delay_ms=60)
        started = time.monotonic()
        await client.get("/health")
        assert time.monotonic() - started >= 0.06

    run(scenario)


# Gossip ---------------------------------------------------------------------------------------------------------------


def pair() -> tuple[TestServer, TestServer]:
    ports = unused_port(), unused_port()
    apps = [
        create_app(Settings(shards=(SHARD,), peers=(f"http://127.0.0.1:{port}",)), clock_ns=lambda: NOW_NS)
        for port in reversed(ports)
    ]
    first, second = (TestServer(app, port=port) for app, port in zip(apps, ports, strict=True))
    return first, second


def between(scenario) -> None:
    async def main() -> None:
        first, second = pair()
        async with TestClient(first) as here, TestClient(second) as there:
            await scenario(here, there)

    asyncio.run(main())


async def until_stored(client, count: int) -> None:
    async with asyncio.timeout(5):
        while await stored(client) != count:  # noqa: ASYNC110 -- another server's state has no event
            await asyncio.sleep(0.01)


def test_a_lost_message_does_not_reach_the_peer_and_the_next_one_does():
    async def scenario(here, there):
        await faults(here, gossip_lost=1)
        await publish(here, 1, 2)
        await until_stored(there, 1)
        assert (await ring(here), await ring(there)) == ([1, 2], [2])

    between(scenario)


def test_a_node_without_peers_reports_it_answers_ok_and_keeps_the_message_for_itself():
    """Measured on nwaku v0.38.1: the node is READY all the same."""

    async def scenario(here, there):
        await faults(here, no_peers=True)
        health = await (await here.get("/health")).json()
        assert (health["nodeHealth"], health["connectionStatus"]) == ("READY", "Disconnected")
        assert {"Relay": "NOT_READY", "desc": "No connected peers"} in health["protocolsHealth"]
        await publish(here, 1)
        assert await stored(here) == 1
        await faults(here, no_peers=False)
        await publish(here, 2)
        await until_stored(there, 1)
        assert (await ring(here), await ring(there)) == ([1, 2], [2])

    between(scenario)


def test_a_message_published_in_a_partition_stays_on_its_side():
    async def scenario(here, there):
        for side in (here, there):
            await faults(side, gossip_lost=True)
        await publish(here, 1)
        await publish(there, 2)
        for side in (here, there):
            await faults(side, gossip_lost=False)
        await publish(here, 3)
        await until_stored(there, 2)
        assert (await ring(here), await ring(there)) == ([1, 3], [2, 3])

    between(scenario)


def test_gossip_can_be_late():
    async def scenario(here, there):
        await faults(here, gossip_delay_ms=200)
        await publish(here, 1)
        await faults(here, gossip_delay_ms=0)
        await publish(here, 2)
        await until_stored(there, 2)
        assert await ring(there) == [2, 1]

    between(scenario)


def test_gossip_does_not_go_round_in_circles():
    async def scenario(here, there):
        await publish(here, 1)
        await until_stored(there, 1)
        await publish(there, 1)
        await publish(here, 2)
        await until_stored(there, 2)
        assert (await ring(here), await ring(there)) == ([1, 2], [1, 2])
        counted = await (await here.get("/dev/stats")).json()
        assert counted["received"] <= 2

    between(scenario)
