"""Fail-over of PostgreSQL while phones are notified over Waku and XMPP: the primary is lost, the standby is promoted,
the old primary comes back as its standby, and then PostgreSQL is read-only for a while.

`make failover-test` runs it; READ_ONLY_SECONDS=3600 makes the last step an hour. The ground truth is the record of the
fakes of Apple and Google behind the real gorush.
"""

import asyncio
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Event

import pytest

from embedded.load.xmpp import register_devices
from embedded.servers import prosody
from embedded.supervisor.guard import Guard
from tests.chaos.pushing import Sent, push, pushed
from tests.chaos.stack import GORUSH, Stack, new_stack
from tests.chaos.stories import Story, collect, known, say, show, wait_until_over
from tests.chaos.targets import Target, targets_of
from tests.folders import open_folder
from tests.interop.xmpp import peers
from tests.interop.xmpp.service import APP, SERVICE, Service
from tests.rig import server as processes
from tests.rig.network import Network
from tests.rig.postgres import Replicas, replicas
from tests.rig.server import SERVER, NewFleet, wait_until

pytestmark = pytest.mark.chaos

PHONES = 20
DEVICES = 50
READ_ONLY_SECONDS = float(os.environ.get("READ_ONLY_SECONDS") or 30)
# Notifications per second of each network. Senders repeat requests without an answer, so in an hour all of them come
# again and again.
PER_SECOND = 10 if READ_ONLY_SECONDS <= 60 else 1
# Pause between faults, and before the first.
QUIET_SECONDS = 8.0
# A tool such as Patroni takes its time to notice that a primary is gone.
NOTICED_AFTER_SECONDS = 5.0
# Seconds of commits that an asynchronous standby lacks.
BEHIND_SECONDS = 1.0
CLIENTS_WAIT_SECONDS = 3.0
# After a primary is back: pauses between attempts to connect, and the queued work.
CATCH_UP_SECONDS = 20.0 + READ_ONLY_SECONDS / 20


@dataclass(slots=True)
class Faults:
    """Faults of a run. ``away`` has the times without a writable primary, from and to, in Unix seconds. ``cut_off_at``
    is when the standby got its last record, by the monotonic clock.
    """

    replicas: Replicas
    away: list[tuple[float, float]] = field(default_factory=list)
    cut_off_at: float | None = None

    def strike(self) -> None:
        time.sleep(QUIET_SECONDS)
        self._fail_over()
        time.sleep(QUIET_SECONDS)
        self.replicas.follow()
        time.sleep(QUIET_SECONDS)
        self._become_read_only()
        time.sleep(QUIET_SECONDS)

    def was_away(self, at: float) -> bool:
        """Return whether a request at this Unix time may have had to wait for a primary."""
        return any(began - CLIENTS_WAIT_SECONDS <= at <= ended + CATCH_UP_SECONDS for began, ended in self.away)

    def _fail_over(self) -> None:
        if not self.replicas.is_synchronous:
            self.replicas.cut_off()
            self.cut_off_at = time.monotonic()
            time.sleep(BEHIND_SECONDS)
        with self._away():
            self.replicas.fail_over(noticed_after_seconds=NOTICED_AFTER_SECONDS)

    def _become_read_only(self) -> None:
        with self._away():
            self.replicas.primary.set(default_transaction_read_only="on")
            time.sleep(READ_ONLY_SECONDS)
            self.replicas.primary.set(default_transaction_read_only="off")

    @contextmanager
    def _away(self) -> Iterator[None]:
        began = time.time()
        yield
        self.away.append((began, time.time()))


@dataclass(frozen=True, slots=True)
class World:
    stack: Stack
    service: Service
    replicas: Replicas

    @contextmanager
    def network(self) -> Iterator[Network]:
        """Open a network with a connection to the current primary."""
        node_url = self.stack.fleet.environment["WAKU_NODES"]
        network = Network(node_url, self.stack.servers.fakes_url, self.replicas.primary.server.url(), SERVER.pub33)
        try:
            yield network
        finally:
            network.close()


@pytest.fixture(params=[True, False], ids=["synchronous", "asynchronous"])
def world(
    request: pytest.FixtureRequest,
    require_or_skip: Callable[[bool, str], None],
    new_fleet: NewFleet,
    guard: Guard,
) -> Iterator[World]:
    require_or_skip(GORUSH.exists(), "there is no real gorush: `make peers` builds it")
    require_or_skip(prosody.is_installed(), "there is no Prosody: `make failover-test` as root installs it")
    with open_folder() as folder:
        pair = replicas(folder, guard, is_synchronous=request.param)
        stack = new_stack(new_fleet, "failover", DATABASE_URL=pair.url)
        try:
            pair.start()
            yield _started(stack, pair)
        finally:
            stack.fleet.kill(*stack.fleet.running)
            pair.stop()


def _started(stack: Stack, pair: Replicas) -> World:
    fleet, peer = stack.fleet, peers.prosody(stack.fleet)
    fleet.environment.update(peers.component_of(peer))
    fleet.run(processes.migrate())
    stack.start()
    primary = replace(fleet, environment={**fleet.environment, "DATABASE_URL": pair.primary.server.url()})
    Service(peer, primary).add_app(APP)
    service = Service(peer, fleet)
    service.start_bridge()
    asyncio.run(service.wait_until_connected())
    return World(stack, service, pair)


def test_a_failover_loses_nothing_and_doubles_have_one_collapse_id(world: World) -> None:
    faults, sent, is_over = Faults(world.replicas), Sent(), Event()
    with world.network() as network, ThreadPoolExecutor(2) as pool:
        targets = targets_of(network, {"": PHONES})
        pushing = pool.submit(asyncio.run, _push(world.service, sent, is_over))
        wait_until(lambda: sent.at or pushing.done(), what="devices are registered")
        striking = pool.submit(faults.strike)
        try:
            fates = _notify(network, targets, striking.done)
        finally:
            is_over.set()
        striking.result()
        pushing.result()
    with world.network() as network:
        _wait_until_over(network, fates)
        stories = collect(network, fates).values()
        show(f"{len(fates)} notifications over Waku", stories)
    _judge_waku(stories, faults)
    _judge_xmpp(world, sent, faults)


def _notify(network: Network, targets: Sequence[Target], is_enough: Callable[[], bool]) -> Mapping[bytes, str]:
    """Send requests at a steady rate. Return the messages, each without a fate."""
    fates: dict[bytes, str] = {}
    started = time.monotonic()
    while not is_enough():
        message_id = os.urandom(32)
        network.publish(targets[len(fates) % len(targets)].request(message_id))
        fates[message_id] = ""
        time.sleep(max(0.0, started + len(fates) / PER_SECOND - time.monotonic()))
    return fates


async def _push(service: Service, sent: Sent, is_over: Event) -> None:
    async with service.user_server() as server:
        devices = await register_devices(server, SERVICE, DEVICES, app=APP, on_progress=lambda: None)
        routes = [route for route, _ in devices]
        await push(server, routes, sent, rate_per_second=PER_SECOND, is_enough=lambda _: is_over.is_set())


def _wait_until_over(network: Network, fates: Collection[bytes]) -> None:
    try:
        wait_until_over(network, fates)
    except AssertionError:
        say(f"{len(fates)} sent, {known(network)} known")
        raise


def _judge_waku(stories: Collection[Story], faults: Faults) -> None:
    lost = [story for story in stories if story.is_lost]
    doubled = [story for story in stories if story.is_doubled]
    split = [story for story in doubled if len(story.collapse_ids) > 1]
    late = [story for story in stories if story.reply_seconds > CLIENTS_WAIT_SECONDS]
    unexplained = [story for story in late if not faults.was_away(story.sent_at)]
    say(
        f"Waku: {len(stories)} requests, {len(lost)} lost, {len(doubled)} doubled, {len(split)} of them under several"
        f" collapse ids; {len(late)} replies later than {CLIENTS_WAIT_SECONDS} s, {len(unexplained)} of them with a"
        f" primary"
    )
    for fault, (began, ended) in zip(("lost", "read-only"), faults.away, strict=True):
        waited = [story.replied_at - ended for story in stories if began < story.sent_at < ended and story.replied_at]
        say(
            f"primary {fault} for {ended - began:.0f} s: the first reply to a request of that time {min(waited):.1f} s"
            f" later, the last {max(waited):.1f} s"
        )
    assert not lost
    assert not split
    assert {story.state for story in stories} == {"delivered"}
    assert not unexplained


def _judge_xmpp(world: World, sent: Sent, faults: Faults) -> None:
    """A refused push is not lost, as its sender has the refusal. An asynchronous standby may lack pushes of the last
    second.
    """
    accepted = pushed(world.stack.servers.fakes_url)
    missing = [text for text in sent.at if text not in accepted]
    lost = [text for text in missing if text in sent.requests or sent.ids[text] not in sent.refused_ids]
    doubled = [text for text, ids in accepted.items() if len(ids) > 1]
    split = [text for text in doubled if len(set(accepted[text])) > 1]
    cut = [text for text in lost if faults.cut_off_at is not None and _is_cut(sent.at[text], faults.cut_off_at)]
    say(
        f"XMPP: {len(sent.at)} sent, {len(sent.requests)} of them with an answer; {len(missing) - len(lost)} messages"
        f" refused and not sent again; {len(lost)} lost, {len(cut)} of them in the second that the standby lacks;"
        f" {len(doubled)} doubled, {len(split)} of them under several collapse"
        f" ids; {sent.repeated} sent again, refused: {dict(sent.refused)}"
    )
    assert not sent.unanswered
    assert set(lost) == set(cut)
    assert not split


def _is_cut(sent_at: float, cut_off_at: float) -> bool:
    return cut_off_at - CLIENTS_WAIT_SECONDS <= sent_at <= cut_off_at + BEHIND_SECONDS + CLIENTS_WAIT_SECONDS
