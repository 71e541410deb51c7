"""Storms: requests over Waku and pushes over XMPP go on while parts of the server and its peers are killed or broken.

`make storm` runs the short one, `make failover-test` those of PostgreSQL, `make chaos` all. CHAOS_RATE is the number of
notifications of each network in a second, and CHAOS_SEED repeats the order of the faults, though not their exact
moments. READ_ONLY_SECONDS=3600 makes PostgreSQL read-only for an hour. The ground truth is the record of the fakes of
Apple and Google behind the real gorush.
"""

import asyncio
import os
import random
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event

import pytest

from tests.chaos.conftest import NewWorld
from tests.chaos.faults import FAIL_OVER, FAULTS, LOSSES, LOST_ANSWERS, READ_ONLY, Storm
from tests.chaos.world import World
from tests.interop.xmpp.service import Service
from tests.rig.ledger import Story, collect, judge, judge_pushes, print_table, say, wait_until_over
from tests.rig.load import Pushes, Target, send_steadily, targets_of
from tests.rig.server import wait_until

pytestmark = pytest.mark.chaos

RATE = float(os.environ.get("CHAOS_RATE") or 20)
SENDERS = 4
# Seconds until a standby of the bridge reads, after a fault that leaves it a database.
TAKEOVER_SECONDS = 10
# Largest lag behind the stores, once those are read again that limited the rate.
LAG_SECONDS, OVER_SECONDS = 90, 400
# The share of all notifications that may be pushed more than once, with one collapse id.
MAX_DOUBLED = 0.1
# Number of phones by their fate at Apple and Google. All pushes are delivered in the end.
PHONES = {"": 15, "flaky1-": 2, "flaky2-": 1, "slow300-": 2}


@dataclass(frozen=True, slots=True)
class Plan:
    """A storm: its faults, whether PostgreSQL's standby is synchronous, and how long a pause between faults is."""

    faults: Sequence[str]
    is_synchronous: bool = True
    scale: float = 1.0
    pause_seconds: float = 2.0
    is_in_order: bool = False


OF_POSTGRESQL = (FAIL_OVER, READ_ONLY)
PLANS = {
    "short": Plan(
        ("XMPP bridge and worker killed", LOST_ANSWERS, "bridge killed", "every gorush killed", FAIL_OVER), scale=0.1
    ),
    "failover-synchronous": Plan(OF_POSTGRESQL, pause_seconds=8, is_in_order=True),
    "failover-behind": Plan(OF_POSTGRESQL, pause_seconds=8, is_in_order=True, is_synchronous=False),
    "every-fault": Plan(tuple(FAULTS)),
}


@pytest.fixture(params=PLANS.values(), ids=PLANS)
def plan(request: pytest.FixtureRequest) -> Plan:
    return request.param


@pytest.fixture
def world(plan: Plan, new_world: NewWorld) -> Iterator[World]:
    # The timeout is short, so that a storm reaches the end of it.
    with new_world(is_synchronous=plan.is_synchronous, GORUSH_TIMEOUT_SECONDS="5") as world:
        yield world


@pytest.fixture
def rng() -> random.Random:
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().getrandbits(32))
    say(f"CHAOS_SEED={seed}")
    return random.Random(seed)


@pytest.mark.requirement("X2")
def test_a_storm_loses_nothing_and_doubles_have_one_collapse_id(world: World, plan: Plan, rng: random.Random) -> None:
    storm, sent = Storm(world, rng, plan.scale), Pushes()
    order = plan.faults if plan.is_in_order else rng.sample(plan.faults, len(plan.faults))
    with world.network() as network:
        targets = targets_of(network, PHONES, senders=SENDERS)
    with ThreadPoolExecutor(2) as pool:
        is_over = Event()
        pushing = pool.submit(asyncio.run, _push(world.service, sent, is_over))
        wait_until(lambda: sent.at or pushing.done(), what="devices are registered")
        striking = pool.submit(storm.strike, order, pause_seconds=plan.pause_seconds)
        try:
            message_ids = send_steadily(
                world.hand_over(), targets, per_second=RATE, is_enough=lambda _: striking.done() or pushing.done()
            )
        finally:
            is_over.set()
        striking.result()
        pushing.result()
    with world.network() as network:
        wait_until_over(network, message_ids)
        stories = collect(network, message_ids)
        accepted = network.pushes()
    _show(stories, storm)
    judge(stories, is_excused=storm.may_delay)
    judge_pushes(sent, accepted, is_excused=storm.had_in_hand, is_cut=storm.has_cut_off)
    _judge_doubles(stories, plan)
    _judge_reading(world, stories, storm)
    _judge_logs(world, targets)


async def _push(service: Service, sent: Pushes, is_over: Event) -> None:
    async with service.user_server() as server:
        routes = await server.routes(30)
        await sent.send(server, routes, per_second=RATE, is_enough=lambda _: is_over.is_set())


def _show(stories: Collection[Story], storm: Storm) -> None:
    rows = [
        (each.name, f"{each.ended_at - each.began_at:.1f}", *(f"{s:.1f}" if s is not None else "" for s in seconds))
        for each in storm.struck
        for replied in [[s.replied_at for s in stories if s.replied_at and each.covers(s.sent_at)]]
        for seconds in [(max(replied, default=each.ended_at) - each.ended_at, each.takeover_seconds)]
    ]
    print_table("Faults", ("fault", "lasted, s", "last reply to that time after, s", "read again after, s"), rows)


def _judge_doubles(stories: Collection[Story], plan: Plan) -> None:
    """Few notifications are pushed twice, each for a reason. A standby that was behind does not know all attempts."""
    doubled = [story for story in stories if story.is_doubled]
    assert not plan.is_synchronous or not [story for story in doubled if not story.is_explained]
    assert len(doubled) <= MAX_DOUBLED * len(stories)


def _judge_reading(world: World, stories: Collection[Story], storm: Storm) -> None:
    """Lost answers of the live path were found in stores, another bridge took over soon, and no store is behind."""
    losses = [each for each in storm.struck if each.name in LOSSES]
    read_later = [
        s for s in stories if s.path == "store" and any(e.covers(s.sent_at, before=1, after=1) for e in losses)
    ]
    assert not losses or read_later, "the live path lost nothing: the faults did not strike"
    takeovers = [each.takeover_seconds or 0 for each in storm.struck if each.name in ("bridge killed", FAIL_OVER)]
    assert max(takeovers, default=0) <= TAKEOVER_SECONDS
    wait_until(lambda: world.lag_seconds() <= LAG_SECONDS, seconds=OVER_SECONDS, what="the stores are caught up with")


def _judge_logs(world: World, targets: Sequence[Target]) -> None:
    for name, text in world.own_logs().items():
        assert not [target for target in targets if target.device_token in text], name
