import time

import aiohttp
import pytest

from notifications.gateways.gorush.devserver.gateway import Settings

REQUEST = {"notifications": [{"platform": 1, "topic": "im.status", "tokens": ["ok-1"], "message": "m"}]}


async def listed(client, **parameters: object) -> dict:
    return await (await client.get("/dev/pushes", params=parameters)).json()


def test_pushes_are_read_step_by_step(run):
    async def scenario(client):
        for _ in range(3):
            await client.post("/api/push", json=REQUEST)
        first = await listed(client, limit=2)
        assert ([each["id"] for each in first["pushes"]], first["last_id"]) == ([1, 2], 2)
        rest = await listed(client, since=first["last_id"])
        assert ([each["id"] for each in rest["pushes"]], rest["last_id"]) == ([3], 3)
        assert (await listed(client, since=3)) == rest | {"pushes": []}
        assert rest["counts"] == {"ok-1": {"accepted": 3, "refused": 0}}

    run(scenario)


def test_pushes_can_be_forgotten(run):
    async def scenario(client):
        await client.post("/api/push", json=REQUEST)
        assert (await client.delete("/dev/pushes")).status == 204
        assert await listed(client) == {"pushes": [], "last_id": 0, "counts": {}}

    run(scenario)


def test_pushes_outlive_the_server_when_it_has_a_file(run, tmp_path):
    settings = Settings(data=tmp_path / "pushes.sqlite3")

    async def before(client):
        await client.post("/api/push", json=REQUEST)

    async def after(client):
        assert len((await listed(client))["pushes"]) == 1

    run(before, settings)
    run(after, settings)


def test_refuses_a_since_that_is_no_number(run):
    async def scenario(client):
        assert (await client.get("/dev/pushes", params={"since": "x"})).status == 400

    run(scenario)


def test_a_server_that_is_down_cuts_every_connection_but_dev(run):
    async def scenario(client):
        await client.post("/dev/faults", json={"down": True})
        for path in ("/api/push", "/healthz"):
            with pytest.raises(aiohttp.ServerDisconnectedError):
                await client.post(path, json=REQUEST)
        assert (await listed(client))["pushes"] == []
        await client.delete("/dev/faults")
        assert (await client.post("/api/push", json=REQUEST)).status == 200

    run(scenario)


def test_a_server_can_answer_any_status_without_pushing(run):
    async def scenario(client):
        await client.post("/dev/faults", json={"status": 503})
        reply = await client.post("/api/push", json=REQUEST)
        assert (reply.status, await reply.read()) == (503, b"")
        assert (await listed(client))["pushes"] == []

    run(scenario)


def test_pushes_can_be_delayed(run):
    async def scenario(client):
        await client.post("/dev/faults", json={"delay_ms": 60})
        started = time.monotonic()
        await client.post("/api/push", json=REQUEST)
        assert time.monotonic() - started >= 0.06

    run(scenario)


@pytest.mark.parametrize("body", [b"", b"[1]", b'{"typo": true}', b'{"down": 1}', b'{"delay_ms": true}'])
def test_refuses_faults_it_does_not_have(run, body):
    async def scenario(client):
        assert (await client.post("/dev/faults", data=body)).status == 400
        assert await (await client.get("/dev/faults")).json() == {"down": False, "delay_ms": 0, "status": 0}

    run(scenario)
