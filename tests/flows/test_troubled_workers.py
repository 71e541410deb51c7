"""Several workers on the same rows: one hangs, the broker is emptied, or both share a limit. Each push is sent once,
and each request is answered once.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import redis

from embedded.stack import plan
from tests.rig import load
from tests.rig.budget import first_everyday
from tests.rig.load import Load
from tests.rig.network import Network, network_of
from tests.rig.server import OF_FLOWS, Fleet, NewFleet, served, wait_until

REQUESTS = 150
PUSHES = 15  # to each phone, at once: half of what `ROUTE_LIMITS` allow


@pytest.fixture
def prepared(fleet: Fleet, network: Network) -> Load:
    return load.prepare(network, REQUESTS)


@pytest.fixture(scope="module")
def second(fleet: Fleet) -> Iterator[str]:
    """Start another worker beside the first."""
    fleet.start(plan.worker("second", "batches", "--pool=prefork", "--concurrency=1"))
    wait_until(lambda: batches_of(fleet, "second"), what="the second worker processes batches")
    yield "second"
    if "second" in fleet.running:
        fleet.stop("second")


def batches_of(fleet: Fleet, name: str) -> set[int]:
    """Return the processes of a worker that process batches: the children of its leader."""
    leader = fleet.running[name].pid
    return set(map(int, Path(f"/proc/{leader}/task/{leader}/children").read_text().split()))


@contextmanager
def stopped(fleet: Fleet, name: str) -> Iterator[None]:
    """Make a worker hang while the block runs."""
    pids = [fleet.running[name].pid, *batches_of(fleet, name)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_a_broker_that_is_emptied_again_and_again_loses_nothing(fleet: Fleet, network: Network, prepared: Load) -> None:
    with redis.Redis.from_url(fleet.environment["REDIS_URL"]) as broker:
        for start in range(0, REQUESTS, REQUESTS // 10):
            network.publish(*prepared.messages[start : start + REQUESTS // 10])
            broker.flushall()
    load.check_each_once(network, prepared)


@pytest.mark.nightly
def test_a_leader_that_hangs_leaves_the_work_to_the_other(
    fleet: Fleet, network: Network, prepared: Load, second: str
) -> None:
    """The first worker started first, so it is the leader."""
    with stopped(fleet, "batches"):
        network.publish(*prepared.messages)
        load.wait_until_all_processed(network, prepared)
    load.check_each_once(network, prepared)


@pytest.mark.parametrize("phones", first_everyday(40, 200))
def test_no_push_below_the_limit_of_an_address_loses_its_content(new_fleet: NewFleet, phones: int) -> None:
    """The workers share the limit, whichever of them decides about a push."""
    limited = new_fleet("limited", **OF_FLOWS | {"ROUTE_LIMITS": "30/10,600/3600"})
    with served(limited) as fleet, closing(network_of(fleet)) as network:
        fleet.start(plan.worker("second", "batches", "--pool=prefork", "--concurrency=1"))
        prepared = load.prepare(network, PUSHES * phones, recipients=phones)
        network.publish(*prepared.messages)
        load.check_each_once(network, prepared)
