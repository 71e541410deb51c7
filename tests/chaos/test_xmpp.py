"""XMPP under faults: the bridge, both gorushes and the worker are killed while a user's server pushes through Prosody.

`make chaos` runs it; CHAOS_XMPP_COUNT makes it shorter. The ground truth is the record of Google's fake behind the real
gorush. Every acknowledged push must arrive. A request without an acknowledgement, because the bridge was killed, is
sent again under its id and must not be pushed as two. A message stanza has no acknowledgement: it may be lost when a
bridge is killed while processing it, and only then.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle
from xml.etree.ElementTree import Element

import pytest
from rich.console import Console

from embedded.load.xmpp import register_devices
from embedded.servers import prosody
from tests.chaos.pushing import OVER_SECONDS, Sent, push, pushed
from tests.chaos.stack import Stack
from tests.interop.xmpp import peers, service
from tests.interop.xmpp.peers import SERVICE
from tests.interop.xmpp.service import APP, BRIDGE, Service
from tests.rig.server import wait_until

pytestmark = pytest.mark.chaos

COUNT = int(os.environ.get("CHAOS_XMPP_COUNT", "6000"))
RATE_PER_SECOND = 50
DEVICES = 150
PAUSE_SECONDS = 3.0
# Pushes sent this shortly before the bridge was killed or reconnected may be lost with it.
IN_HAND_SECONDS = 5.0
OPEN = """
    SELECT count(*) FROM notifications_notification
    WHERE state IN ('pending', 'in_flight', 'retrying', 'ambiguous')
"""
HURRY = """
    UPDATE notifications_notification SET next_attempt_at = now()
    WHERE state IN ('retrying', 'ambiguous') AND next_attempt_at > now() + interval '5 seconds'
"""


@dataclass(slots=True)
class Storm:
    """One fault every few seconds. ``bridge_away`` has the times without a bridge."""

    stack: Stack
    service: Service
    struck: list[str] = field(default_factory=list)
    bridge_away: list[tuple[float, float]] = field(default_factory=list)

    def blow(self, is_over: threading.Event) -> None:
        faults: dict[str, Callable[[], None]] = {
            "bridge killed": self._kill_bridge,
            "worker killed": self._kill_worker,
            "a gorush killed": lambda: self._kill_gorush(0),
            "bridge and worker killed": lambda: (self._kill_bridge(), self._kill_worker()),
            "every gorush killed": lambda: self._kill_gorush(0, 1),
            "bridge replaced": self._replace_bridge,
        }
        for name in cycle(faults):
            if is_over.wait(PAUSE_SECONDS):
                return
            self.struck.append(name)
            faults[name]()

    def _kill_bridge(self) -> None:
        killed_at = time.monotonic()
        self.stack.fleet.kill(BRIDGE)
        self.service.start_bridge()
        asyncio.run(self._wait_for_bridge())
        self.bridge_away.append((killed_at, time.monotonic()))

    def _replace_bridge(self) -> None:
        stopped_at = time.monotonic()
        self.stack.fleet.stop(BRIDGE)
        self.service.start_bridge()
        asyncio.run(self._wait_for_bridge())
        self.bridge_away.append((stopped_at, time.monotonic()))

    async def _wait_for_bridge(self) -> None:
        """Send queries as a user does, because the neighbouring component's own address is taken."""
        async with self.service.peer.account(self.service.peer.user("watch")) as watch:
            await service.until_async(lambda: is_there(watch.ask), what="the bridge is connected", seconds=60)

    def _kill_worker(self) -> None:
        self.stack.fleet.kill("batches")
        self.stack.start_workers("batches")

    def _kill_gorush(self, *numbers: int) -> None:
        self.stack.kill_gorush(*numbers)
        time.sleep(1)
        self.stack.start_gorush(*numbers)


async def is_there(ask_service: Callable[[Element], object]) -> bool:
    request = service.iq("get", SERVICE, service.new_id(), service.element("ping", service.PING))
    return (await ask_service(request)).get("type") == "result"


@pytest.fixture
def push_service(idle_stack: Stack, require_or_skip: Callable[[bool, str], None]) -> Service:
    require_or_skip(prosody.is_installed(), "there is no Prosody: `make xmpp-interop` as root installs it")
    fleet, peer = idle_stack.fleet, peers.prosody(idle_stack.fleet)
    fleet.environment.update(peers.component_of(peer))
    found = Service(peer, fleet)
    found.add_app(APP)
    idle_stack.start_gorush(*range(len(idle_stack.ports)))
    idle_stack.start_workers("batches")
    found.start_bridge()
    asyncio.run(found.wait_until_connected())
    return found


@pytest.mark.requirement("X2")
def test_nothing_that_was_acknowledged_is_lost_and_doubles_have_one_collapse_id(
    idle_stack: Stack, push_service: Service
) -> None:
    sent, storm, is_over = Sent(), Storm(idle_stack, push_service), threading.Event()
    blowing = threading.Thread(target=storm.blow, args=[is_over], name="storm")

    async def main() -> None:
        async with push_service.user_server() as server:
            devices = await register_devices(server, SERVICE, DEVICES, app=APP, on_progress=lambda: None)
            blowing.start()
            try:
                routes = [route for route, _ in devices]
                await push(server, routes, sent, rate_per_second=RATE_PER_SECOND, is_enough=COUNT.__le__)
            finally:
                is_over.set()
                await asyncio.to_thread(blowing.join)

    asyncio.run(main())

    def nothing_waits() -> bool:
        push_service.fleet.rows(HURRY)
        return push_service.fleet.rows(OPEN) == [(0,)]

    wait_until(nothing_waits, seconds=OVER_SECONDS, pause_seconds=1, what="everything is delivered")
    judge(idle_stack, sent, storm)


def judge(stack: Stack, sent: Sent, storm: Storm) -> None:
    accepted = pushed(stack.servers.fakes_url)
    messages = sent.at.keys() - sent.requests.keys()
    lost = [text for text in sent.requests if not accepted[text]]
    lost_messages = [text for text in messages if not accepted[text]]
    unexplained = [text for text in lost_messages if not was_in_hand(sent.at[text], storm)]
    doubled = [text for text, ids in accepted.items() if len(ids) > 1]
    split = [text for text in doubled if len(set(accepted[text])) > 1]
    Console(width=140).print(
        f"{len(sent.at)} pushes, {len(storm.struck)} faults; {len(sent.requests)} requests: {len(lost)} lost,"
        f" {sent.repeated} sent again; {len(messages)} messages: {len(lost_messages)} lost,"
        f" {len(unexplained)} of them not with a bridge; {len(doubled)} doubled, {len(split)} of them under several"
        f" collapse ids; refused: {dict(sent.refused)}"
    )
    assert not sent.unanswered
    assert set(sent.requests.values()) <= sent.stored.keys()
    assert not lost
    assert not unexplained
    assert not split


def was_in_hand(at: float, storm: Storm) -> bool:
    return any(began - IN_HAND_SECONDS <= at <= ended + IN_HAND_SECONDS for began, ended in storm.bridge_away)
