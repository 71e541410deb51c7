"""Faults of the development gorush."""

import asyncio
import time

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from embedded.gorush.gateway import Settings
from tests.faulty.gorush import create_app

REQUEST = {"notifications": [{"platform": 1, "topic": "im.status", "tokens": ["ok-1"], "message": "m"}]}


def run(scenario):
    async def main():
        async with TestClient(TestServer(create_app(Settings()))) as client:
            await scenario(client)

    asyncio.run(main())


async def pushes(client):
    return (await (await client.get("/dev/pushes")).json())["pushes"]


def test_a_server_that_is_down_cuts_every_connection_but_dev():
    async def scenario(client):
        await client.post("/dev/faults", json={"down": True})
        for path in ("/api/push", "/healthz"):
            with pytest.raises(aiohttp.ServerDisconnectedError):
                await client.post(path, json=REQUEST)
        assert await pushes(client) == []
        await client.delete("/dev/faults")
        assert (await client.post("/api/push", json=REQUEST)).status == 200

    run(scenario)


def test_a_server_can_answer_any_status_without_pushing():
    async def scenario(client):
        await client.post("/dev/faults", json={"status": 503})
        reply = await client.post("/api/push", json=REQUEST)
        assert (reply.status, await reply.read()) == (503, b"")
        assert await pushes(client) == []

    run(scenario)


def test_pushes_can_be_delayed():
    async def scenario(client):
        await client.post("/dev/faults", json={"delay_ms": 60})
        started = time.monotonic()
        await client.post("/api/push", json=REQUEST)
        assert time.monotonic() - started >= 0.06

    run(scenario)


def test_the_credentials_of_gorush_can_be_refused():
    async def scenario(client):
        await client.post("/dev/faults", json={"refuses_keys": True})
        reply = await (await client.post("/api/push", json=REQUEST)).json()
        assert [entry["error"] for entry in reply["logs"]] == ["InvalidProviderToken"]
        assert [push["error"] for push in await pushes(client)] == ["InvalidProviderToken"]

    run(scenario)


@pytest.mark.parametrize("body", [b"", b"[1]", b'{"typo": true}', b'{"down": 1}', b'{"delay_ms": true}'])
def test_unknown_faults_are_refused(body):
    async def scenario(client):
        assert (await client.post("/dev/faults", data=body)).status == 400
        assert not any((await (await client.get("/dev/faults")).json()).values())

    run(scenario)
