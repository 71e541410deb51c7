"""The relay endpoints. The words of nwaku's answers are from its source, and measured on v0.38.1 where it says so."""

from base64 import b64encode

import pytest

from embedded.node.settings import Settings

SHARD, OTHER = "/waku/2/rs/16/32", "/waku/2/rs/16/64"
MESSAGES, OTHER_MESSAGES = (
    "/relay/v1/messages/%2Fwaku%2F2%2Frs%2F16%2F32",
    "/relay/v1/messages/%2Fwaku%2F2%2Frs%2F16%2F64",
)
SUBSCRIPTIONS = "/relay/v1/subscriptions"
ON_SHARD = Settings(shards=(SHARD,))
NOW_NS = 1_700_000_000_000_000_000


def message(payload: bytes = b"abc", **fields: object) -> dict[str, object]:
    encoded = b64encode(payload).decode()
    return {"payload": encoded, "contentTopic": "/waku/1/0x75b8b8f6/rfc26", "version": 1, "timestamp": NOW_NS, **fields}


async def drained(client, path: str = MESSAGES) -> list[dict]:
    reply = await client.get(path)
    assert (reply.status, reply.content_type) == (200, "application/json")
    return await reply.json()


async def publish(client, fields: dict, path: str = MESSAGES) -> tuple[int, str]:
    reply = await client.post(path, json=fields)
    return reply.status, await reply.text()


def test_reading_without_subscription_is_404_with_an_empty_body(run):
    async def scenario(client):
        reply = await client.get(MESSAGES)
        assert (reply.status, await reply.read()) == (404, b"")

    run(scenario)


def test_a_published_message_is_read_once_exactly_as_nwaku_writes_it_by_its_source(run):
    async def scenario(client):
        reply = await client.post(SUBSCRIPTIONS, json=[SHARD])
        assert (reply.status, await reply.text()) == (200, "OK")
        assert await publish(client, message(meta="bQ==")) == (200, "OK")
        assert await drained(client) == [message(meta="bQ==", ephemeral=False, proof="")]
        assert await drained(client) == []

    run(scenario)


def test_subscribing_again_keeps_what_is_waiting(run):
    async def scenario(client):
        await publish(client, message())
        await client.post(SUBSCRIPTIONS, json=[SHARD])
        assert len(await drained(client)) == 1

    run(scenario, ON_SHARD)


def test_unsubscribing_brings_back_404(run):
    async def scenario(client):
        assert (await client.delete(SUBSCRIPTIONS, json=[SHARD, OTHER])).status == 200
        assert (await client.get(MESSAGES)).status == 404

    run(scenario, ON_SHARD)


@pytest.mark.parametrize(
    "topics", [["/waku/1/0x75b8b8f6/rfc26"], ["\ud800"], [3], "text", {}, [SHARD, "/waku/2/default-waku/proto"]]
)
def test_refuses_to_subscribe_to_anything_but_static_shards(run, topics):
    async def scenario(client):
        assert (await client.post(SUBSCRIPTIONS, json=topics)).status == 400
        assert (await client.delete(SUBSCRIPTIONS, json=topics)).status == 400
        assert (await client.get(MESSAGES)).status == 404

    run(scenario)


def test_refuses_to_publish_without_subscription_before_it_looks_at_the_body(run):
    async def scenario(client):
        for body in (message(), {}):
            status, text = await publish(client, body)
            assert (status, "not subscribed" in text) == (400, True)
        await client.post(SUBSCRIPTIONS, json=[SHARD])
        reply = await client.post(MESSAGES)
        assert (reply.status, await reply.text()) == (400, "")

    run(scenario)


def test_fills_in_now_for_a_timestamp_of_zero_or_none(run):
    async def scenario(client):
        await publish(client, message(b"a", timestamp=0))
        without = message(b"b")
        del without["timestamp"]
        await publish(client, without)
        assert [each["timestamp"] for each in await drained(client)] == [NOW_NS, NOW_NS]

    run(scenario, ON_SHARD)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"", "application/json"),
        (b"{", "application/json"),
        (b"[]", "application/json"),
        (b'{"payload": "YWIxY", "contentTopic": "t"}', "application/json"),
        (b'{"payload": "-_-_", "contentTopic": "t"}', "application/json"),
        (b'{"payload": "YWJj", "contentTopic": "t", "colour": 1}', "application/json"),
        (b'{"payload": "YWJj", "contentTopic": "t", "contentTopic": "t"}', "application/json"),
        (b'{"payload": "YWJj", "contentTopic": "t"}', "application/octet-stream"),
    ],
)
def test_answers_400_to_a_bad_message(run, body, content_type):
    async def scenario(client):
        reply = await client.post(MESSAGES, data=body, headers={"Content-Type": content_type})
        assert reply.status == 400
        assert await drained(client) == []

    run(scenario, ON_SHARD)


def test_takes_json_with_the_content_type_of_plain_text(run):
    async def scenario(client):
        body = b'{"payload": "YWJj", "contentTopic": "t"}'
        reply = await client.post(MESSAGES, data=body, headers={"Content-Type": "text/plain"})
        assert reply.status == 200

    run(scenario, ON_SHARD)


def test_refuses_a_message_over_the_size_limit(run):
    async def scenario(client):
        assert (await publish(client, message(bytes(900))))[0] == 200
        assert (await publish(client, message(bytes(1000))))[0] == 400

    run(scenario, Settings(shards=(SHARD,), max_message_bytes=1000))


def test_a_full_ring_gives_up_the_oldest_message_of_any_topic(run):
    async def scenario(client):
        await publish(client, message(timestamp=NOW_NS - 1), OTHER_MESSAGES)
        for number in range(2):
            await publish(client, message(timestamp=NOW_NS + number))
        assert await drained(client, OTHER_MESSAGES) == []
        assert len(await drained(client)) == 2
        assert (await (await client.get("/dev/stats")).json())["evicted"] == 1

    run(scenario, Settings(shards=(SHARD, OTHER), relay_cache_capacity=2))


def test_holds_50_messages_by_default(run):
    async def scenario(client):
        for number in range(60):
            await publish(client, message(timestamp=NOW_NS + number))
        assert len(await drained(client)) == 50

    run(scenario, ON_SHARD)


def test_a_repeated_message_enters_the_ring_of_its_own_node_again_and_no_other(run, clock):
    """Measured on nwaku v0.38.1."""

    async def scenario(client):
        gossip = [{"pubsubTopic": SHARD, "message": message()}]
        for _ in "12":
            assert await publish(client, message()) == (200, "OK")
            assert len(await drained(client)) == 1
        clock.advance(119)
        await client.post("/dev/gossip", json=gossip)
        assert await drained(client) == []
        clock.advance(1)
        await client.post("/dev/gossip", json=gossip)
        assert len(await drained(client)) == 1

    run(scenario, ON_SHARD)
