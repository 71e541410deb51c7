import pytest

from embedded.node.settings import Settings

SHARD = "/waku/2/rs/16/32"
PUSH = "/lightpush/v3/message"
MESSAGE = {"payload": "YWJj", "contentTopic": "/waku/1/0x75b8b8f6/rfc26", "version": 1}


async def push(client, body: object) -> tuple[int, dict]:
    reply = await client.post(PUSH, json=body)
    return reply.status, await reply.json()


async def archived(client) -> int:
    return (await (await client.get("/dev/stats")).json())["archived"]


def test_a_lone_node_accepts_and_counts_one_peer(run):
    async def scenario(client):
        assert await push(client, {"pubsubTopic": SHARD, "message": MESSAGE}) == (200, {"relayPeerCount": 1})
        assert await archived(client) == 1

    run(scenario)


def test_a_pushed_message_is_read_from_relay(run):
    async def scenario(client):
        await push(client, {"pubsubTopic": SHARD, "message": MESSAGE})
        messages = await (await client.get("/relay/v1/messages/%2Fwaku%2F2%2Frs%2F16%2F32")).json()
        assert [each["payload"] for each in messages] == ["YWJj"]

    run(scenario, Settings(shards=(SHARD,)))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ([], 400),
        ({}, 400),
        ({"message": MESSAGE}, 400),  # static sharding needs the topic
        ({"pubsubTopic": "", "message": MESSAGE}, 400),
        ({"pubsubTopic": SHARD}, 400),
        ({"pubsubTopic": SHARD, "message": MESSAGE | {"payload": "YWI"}}, 400),
        ({"pubsubTopic": SHARD, "message": MESSAGE | {"colour": 1}}, 400),
        ({"pubsubTopic": SHARD, "message": MESSAGE, "colour": 1}, 400),
        ({"pubsubTopic": "/waku/2/default-waku/proto", "message": MESSAGE}, 421),
        ({"pubsubTopic": SHARD, "message": MESSAGE | {"payload": "YWJj" * 400}}, 413),
    ],
)
def test_refuses_with_the_protocols_code_and_a_description(run, body, status):
    async def scenario(client):
        answered, reason = await push(client, body)
        assert (answered, list(reason), await archived(client)) == (status, ["statusDesc"], 0)

    run(scenario, Settings(max_message_bytes=1000))
