"""Load of a thousand notifications in ten seconds through Prosody (case 19)."""

import psutil
import pytest

from embedded.load import PushRecord
from embedded.xmpp_load import XmppLoad
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
        load = XmppLoad(server, SERVICE, APP)
        routes = await load.register(DEVICES)
        before = process.memory_info().rss
        result = await load.run(
            routes, PushRecord(push_service.gorush_url, client), rate=RATE, seconds=SECONDS, drain_seconds=60
        )
        grown = process.memory_info().rss - before
    print(result, f"bridge grew by {grown / 2**20:.1f} MiB")  # noqa: T201 - figures of the run
    assert result.requests == RATE * SECONDS
    assert result.is_clean, result
    assert grown < MAX_GROWTH_BYTES
