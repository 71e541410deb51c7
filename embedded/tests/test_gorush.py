"""The development gorush where a real one is not at hand to compare: its record, fates and faults.

`tests/interop` compares the rest with a real gorush.
"""

import asyncio
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from embedded.gorush.outcomes import REFUSALS, Outcome, Platform, decide
from embedded.gorush.server import create_app

Client = TestClient[Any, Any]
PUSH = {"platform": 1, "topic": "im.status", "tokens": ["ok-1"], "message": "m", "data": {"chatId": "0x1"}}


def run(scenario: Callable[[Client], Awaitable[None]], data: Path | None = None) -> None:
    async def main() -> None:
        async with TestClient(TestServer(create_app(data))) as client:
            await scenario(client)

    asyncio.run(main())


async def send(client: Client, **fields: object) -> aiohttp.ClientResponse:
    return await client.post("/api/push", json={"notifications": [PUSH | fields]})


async def record(client: Client, **query: object) -> dict[str, Any]:
    return dict(await (await client.get("/dev/pushes", params={k: str(v) for k, v in query.items()})).json())


@pytest.mark.parametrize("fate", [*REFUSALS, "flaky1-"])
def test_a_fate_may_be_written_in_hex_and_after_a_delay(fate: str) -> None:
    in_hex = fate.encode().hex() + "6d2d" * 16
    for platform in (Platform.IOS, Platform.ANDROID):
        outcome = decide(f"{fate}x", platform, 0)
        assert outcome.error
        assert decide(in_hex, platform, 0).refusal is outcome.refusal
    late = decide(f"slow250-slow1-{fate}x", Platform.IOS, 0)
    assert (late.delay_ms, late.refusal) == (251, outcome.refusal)


@pytest.mark.parametrize("token", ["ok-1", "", "deadbeef", "APA91b:x-y", "slowly", "flaky-1", "DEAD-1", "ab" * 32])
def test_every_other_token_is_delivered(token: str) -> None:
    assert decide(token, Platform.IOS, 0) == Outcome()


@pytest.mark.parametrize(
    "collapse", [{"collapse_id": "c"}, {"platform": 2, "topic": "", "android": {"collapse_key": "c"}}]
)
def test_a_flaky_token_fails_for_each_notification_and_is_delivered_then(collapse: dict[str, object]) -> None:
    async def scenario(client: Client) -> None:
        for fields in (collapse, {"collapse_id": "another"}):
            answers = [await (await send(client, tokens=["flaky2-x"], **fields)).json() for _ in range(4)]
            assert [len(answer["logs"]) for answer in answers] == [1, 1, 0, 0]

    run(scenario)


def test_the_record_outlives_the_server_and_is_read_in_steps_by_its_owner_only(tmp_path: Path) -> None:
    def modes() -> set[int]:
        return {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}

    async def before(client: Client) -> None:
        for token in ("a", "dead-", "a"):
            await send(client, tokens=[token])
        assert modes() == {0o600}

    async def after(client: Client) -> None:
        first, rest = await record(client, limit=2), await record(client, since=2)
        assert [(push["id"], push["token"]) for push in first["pushes"] + rest["pushes"]] == [
            (1, "a"), (2, "dead-"), (3, "a")
        ]  # fmt: skip
        assert (first["last_id"], rest["last_id"], (await record(client, since=3))["last_id"]) == (2, 3, 3)
        assert [push["id"] for push in (await record(client, token="a"))["pushes"]] == [1, 3]

    run(before, tmp_path / "pushes.sqlite3")
    run(after, tmp_path / "pushes.sqlite3")


def test_faults_strike_until_they_are_cleared_and_unknown_ones_change_nothing() -> None:
    async def scenario(client: Client) -> None:
        for unknown in ({"down": True, "typo": True}, {"down": "yes"}, {"delay_ms": True}):
            assert (await client.post("/dev/faults", json=unknown)).status == 400
        assert (await send(client)).status == 200
        await client.post("/dev/faults", json={"down": True})
        for asked in (client.get("/healthz"), send(client)):
            with pytest.raises(aiohttp.ServerDisconnectedError):
                await asked
        await client.post("/dev/faults", json={"down": False, "status": 503})
        assert ((await send(client)).status, (await client.get("/healthz")).status) == (503, 200)
        await client.post("/dev/faults", json={"status": 0, "down": 1})
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await send(client)
        assert (await send(client)).status == 200
        await client.post("/dev/faults", json={"down": True, "status": 503})
        await client.delete("/dev/faults")
        assert (await send(client)).status == 200
        assert len((await record(client))["pushes"]) == 3

    run(scenario)
