"""The store. What it says of nwaku is by its source, and measured on v0.38.1 where it says so."""

from base64 import b64encode

import pytest

from embedded.node.settings import Settings
from waku_bridge.codec.topics import message_hash
from waku_bridge.messages import WakuMessage

SHARD, TOPIC = "/waku/2/rs/16/32", "/waku/1/0x75b8b8f6/rfc26"
NOW_NS = 1_700_000_000_000_000_000
STORE = "/store/v3/messages"
ON_SHARD = Settings(shards=(SHARD,))


async def push(client, number: int, **fields: object) -> str:
    """Publish a message and return its hash as the store writes it."""
    payload = str(number).encode()
    message = {"payload": b64encode(payload).decode(), "contentTopic": TOPIC, "timestamp": NOW_NS + number, **fields}
    reply = await client.post("/relay/v1/messages/%2Fwaku%2F2%2Frs%2F16%2F32", json=message)
    assert reply.status == 200
    digest = message_hash(SHARD, WakuMessage(payload, TOPIC, NOW_NS + number))
    return f"0x{digest.hex()}"


async def find(client, **parameters: object) -> dict:
    reply = await client.get(STORE, params=parameters)
    assert reply.status == 200, await reply.text()
    return await reply.json()


async def status_of(client, **parameters: object) -> tuple[int, str]:
    reply = await client.get(STORE, params=parameters)
    return reply.status, await reply.text()


def hashes(page: dict) -> list[str]:
    return [each["messageHash"] for each in page["messages"]]


def test_answers_hashes_only_unless_data_is_asked_for(run):
    async def scenario(client):
        digest = await push(client, 1)
        empty = {"requestId": "", "statusCode": 200, "statusDesc": "OK"}
        assert await find(client) == empty | {"messages": [{"messageHash": digest}]}
        message = {
            "payload": "MQ==",
            "contentTopic": TOPIC,
            "version": 0,
            "timestamp": NOW_NS + 1,
            "ephemeral": False,
        }
        full = {"messageHash": digest, "message": message, "pubsubTopic": SHARD}
        assert await find(client, includeData="true") == empty | {"messages": [full]}

    run(scenario, ON_SHARD)


def test_pages_of_20_follow_each_other_by_cursor(run):
    async def scenario(client):
        pushed = [await push(client, number) for number in range(25)]
        first = await find(client)
        assert (hashes(first), first["paginationCursor"]) == (pushed[:20], pushed[19])
        second = await find(client, cursor=first["paginationCursor"])
        assert (hashes(second), "paginationCursor" in second) == (pushed[20:], False)

    run(scenario, ON_SHARD)


def test_pages_hold_100_at_most(run):
    async def scenario(client):
        for number in range(101):
            await push(client, number)
        assert len(hashes(await find(client, pageSize=1000))) == 100

    run(scenario, ON_SHARD)


def test_backward_pages_are_chronological_inside_and_end_with_the_oldest(run):
    async def scenario(client):
        pushed = [await push(client, number) for number in range(3)]
        newest = await find(client, ascending="false", pageSize=2)
        assert (hashes(newest), newest["paginationCursor"]) == (pushed[1:], pushed[1])
        oldest = await find(client, ascending="false", pageSize=2, cursor=newest["paginationCursor"])
        assert hashes(oldest) == pushed[:1]

    run(scenario, ON_SHARD)


def test_looks_up_hashes_with_and_without_0x(run):
    async def scenario(client):
        pushed = [await push(client, number) for number in range(3)]
        wanted = f"{pushed[0]},{pushed[2].removeprefix('0x')}"
        assert hashes(await find(client, hashes=wanted)) == [pushed[0], pushed[2]]

    run(scenario, ON_SHARD)


def test_stores_nothing_ephemeral_and_nothing_far_from_its_clock(run):
    async def scenario(client):
        await push(client, 1, ephemeral=True)
        await push(client, 2, timestamp=NOW_NS - 21 * 10**9)
        await push(client, 3, timestamp=NOW_NS + 21 * 10**9)
        kept = await push(client, 4)
        assert hashes(await find(client)) == [kept]

    run(scenario, ON_SHARD)


@pytest.mark.parametrize("parameters", [{"pageSize": "x"}, {"startTime": "x"}, {"cursor": "x"}, {"hashes": "0x12"}])
def test_answers_400_to_a_parameter_that_it_cannot_parse(run, parameters):
    async def scenario(client):
        assert (await status_of(client, **parameters))[0] == 400

    run(scenario, ON_SHARD)


@pytest.mark.parametrize(("byte", "words"), [(1, "DRIVER_ERROR: cursor not found"), (0, "INVALID_QUERY")])
def test_answers_500_to_a_cursor_that_leads_nowhere_in_the_words_measured_on_nwaku_0_38_1(run, byte, words):
    async def scenario(client):
        status, text = await status_of(client, cursor=bytes([byte] * 32).hex())
        assert (status, text.startswith("error in handleSelfStoreRequest: BAD_RESPONSE: archive error: ")) == (
            500,
            True,
        )
        assert words in text

    run(scenario, ON_SHARD)


def test_counts_content_topics_on_cursor_pages_only(run):
    async def scenario(client):
        cursor = await push(client, 1)
        eleven = ",".join(f"/a/1/{number}/b" for number in range(11))
        assert (await status_of(client, contentTopics=eleven))[0] == 200
        assert (await status_of(client, contentTopics=eleven, cursor=cursor))[0] == 500

    run(scenario, ON_SHARD)


def test_the_archive_outlives_the_node_when_it_has_a_file(run, tmp_path):
    settings = Settings(data=tmp_path / "store.sqlite3", shards=(SHARD,))

    async def before(client):
        await push(client, 1)

    async def after(client):
        assert len(hashes(await find(client))) == 1

    run(before, settings)
    run(after, settings)


def test_the_retention_deletes_messages_older_than_two_days(run, clock, tmp_path):
    settings = Settings(data=tmp_path / "store.sqlite3", shards=(SHARD,))

    async def before(client):
        await push(client, 1)

    async def after(client):
        assert hashes(await find(client)) == []

    run(before, settings)
    clock.advance(2 * 86_400 + 1)
    run(after, settings)
