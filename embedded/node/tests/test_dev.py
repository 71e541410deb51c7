import asyncio

from aiohttp.test_utils import TestClient, TestServer, unused_port

from embedded.node.rest.server import create_app
from embedded.node.settings import Settings

SHARD, MESSAGES = "/waku/2/rs/16/32", "/relay/v1/messages/%2Fwaku%2F2%2Frs%2F16%2F32"
MESSAGE = {"payload": "YWJj", "contentTopic": "/waku/1/0x75b8b8f6/rfc26"}


async def stats(client) -> dict:
    return await (await client.get("/dev/stats")).json()


def test_stats_count_published_repeated_and_drained_messages(run):
    async def scenario(client):
        await client.post(MESSAGES, json=MESSAGE | {"timestamp": 1})
        await client.post(MESSAGES, json=MESSAGE | {"timestamp": 1})
        await client.post(MESSAGES, json=MESSAGE)
        counted = await stats(client)
        assert (counted["published"], counted["duplicates"], counted["ring"]) == (3, 1, 2)
        await client.get(MESSAGES)
        assert ((await stats(client))["drained"], (await stats(client))["ring"]) == (2, 0)

    run(scenario, Settings(shards=(SHARD,)))


async def until_ring_holds(client, size: int) -> None:
    async with asyncio.timeout(5):
        while (await stats(client))["ring"] != size:  # noqa: ASYNC110 -- another server's state has no event
            await asyncio.sleep(0.01)


def pair() -> tuple[TestServer, TestServer]:
    ports = unused_port(), unused_port()
    apps = [create_app(Settings(shards=(SHARD,), peers=(f"http://127.0.0.1:{port}",))) for port in reversed(ports)]
    first, second = (TestServer(app, port=port) for app, port in zip(apps, ports, strict=True))
    return first, second


def test_two_nodes_gossip_each_message_once():
    async def main() -> None:
        first, second = pair()
        async with TestClient(first) as here, TestClient(second) as there:
            await here.post(MESSAGES, json=MESSAGE)
            await there.post(MESSAGES, json=MESSAGE)
            for client in (here, there):
                await until_ring_holds(client, 2)
                assert (await stats(client))["archived"] == 2

    asyncio.run(main())


def test_a_node_goes_on_without_its_peer():
    async def main() -> None:
        first, _ = pair()
        async with TestClient(first) as here:
            for _ in range(2):
                assert (await here.post(MESSAGES, json=MESSAGE)).status == 200
                await asyncio.sleep(0.05)
            assert not any((await stats(here))["peers"].values())

    asyncio.run(main())


def test_refuses_gossip_that_it_cannot_read(run):
    async def scenario(client):
        for body in (b"x", b"[1]", b'[{"pubsubTopic": "t"}]', b'[{"pubsubTopic": "t", "message": {}}]'):
            assert (await client.post("/dev/gossip", data=body)).status == 400

    run(scenario)
