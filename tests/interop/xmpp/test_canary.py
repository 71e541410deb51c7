"""XMPP canary through real servers, which return the stanzas that the component sends to itself."""

import asyncio

import pytest

from embedded.stack.plan import manage
from embedded.supervisor.processes import StopOrder
from tests.interop.xmpp.service import BRIDGE, Service

pytestmark = pytest.mark.xmpp
LAST = "SELECT state, broken_link, cause FROM xmpp_bridge_canaryrun ORDER BY started_at DESC LIMIT 1"
DEVICES = "SELECT count(*) FROM xmpp_bridge_device WHERE domain = 'push.montague.test'"


def run_canary(service: Service) -> tuple[int, str]:
    """Run the canary. Return its exit code and output."""
    return service.fleet.run_to_end(manage("canary", "xmpp_canary", stop_order=StopOrder.FRONT), seconds=90)


async def test_the_canary_goes_through_a_real_server_and_back(either_service: Service) -> None:
    before = len(either_service.all_pushes())
    code, printed = await asyncio.to_thread(run_canary, either_service)
    assert code == 0, printed
    assert either_service.fleet.rows(LAST) == [("passed", "", "")]
    assert either_service.fleet.rows(DEVICES) == [(0,)]
    assert len(either_service.all_pushes()) == before


async def test_the_canary_reports_that_no_component_is_connected(push_service: Service) -> None:
    await asyncio.to_thread(push_service.fleet.stop, BRIDGE)
    try:
        code, printed = await asyncio.to_thread(run_canary, push_service)
    finally:
        push_service.start_bridge()
    await push_service.wait_until_connected()
    assert code == 1, printed
    assert push_service.fleet.rows(LAST) == [("broken", "register", "component")]
