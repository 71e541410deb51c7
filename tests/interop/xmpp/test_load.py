"""Load of a thousand notifications in ten seconds through Prosody (case 19)."""

import asyncio

import psutil
import pytest

from embedded.load.xmpp import evaluate, pushes_recorded, register_devices, send
from kit.http.connections import new_client
from tests.interop.xmpp.peers import SERVICE
from tests.interop.xmpp.service import APP, BRIDGE, Service

pytestmark = pytest.mark.xmpp

DEVICES = 100
RATE, SECONDS = 100.0, 10.0
# Growth of a bridge's memory by its own counters, and by stanzas that wait for one commit.
MAX_GROWTH_BYTES = 32 * 2**20


@pytest.mark.requirement("X19")
async def test_a_thousand_notifications_in_ten_seconds_are_all_accounted_for(push_service: Service) -> None:
    process = psutil.Process(push_service.fleet.running[BRIDGE].pid)
    async with push_service.user_server() as server, new_client(timeout_seconds=30) as client:
        devices = await register_devices(server, SERVICE, DEVICES, app=APP, on_progress=lambda: None)
        routes = [route for route, _ in devices]
        since = (await pushes_recorded(push_service.gorush_url, client, since=0))[1]
        before = process.memory_info().rss
        sent = await send(server, routes, rate=RATE, seconds=SECONDS, drain_seconds=60, on_progress=lambda: None)
        grown = process.memory_info().rss - before

        async def all_recorded() -> list[tuple[str, int]]:
            found, _ = await pushes_recorded(push_service.gorush_url, client, since=since)
            return found

        arrived = await all_recorded()
        for _ in range(600):
            if len(arrived) >= len(sent.due_ns):
                break
            await asyncio.sleep(0.1)
            arrived = await all_recorded()
    result = evaluate(sent, arrived)
    print(result, f"bridge grew by {grown / 2**20:.1f} MiB")  # noqa: T201 - figures of the run
    assert result.notifications == RATE * SECONDS
    assert result.is_clean, result
    assert grown < MAX_GROWTH_BYTES
