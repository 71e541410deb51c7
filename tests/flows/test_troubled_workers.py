"""Trouble of two workers on the same rows: one hangs or its clock goes back, or the broker is emptied. Each push is
sent once, and each request is answered once.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import redis

from embedded.stack import plan
from embedded.supervisor.processes import StopOrder, python
from tests.rig import load
from tests.rig.load import Load
from tests.rig.network import Network
from tests.rig.server import Fleet, services, wait_until

REQUESTS = 150


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


def unread(network: Network) -> int:
    """Count the envelopes that wait in the inbox."""
    [(count,)] = network.rows(
        "SELECT count(*) FROM waku_bridge_inboundenvelope WHERE state IN ('received', 'postponed')"
    )
    return int(count)


@pytest.mark.nightly
@pytest.mark.usefixtures("second")
def test_two_workers_on_the_same_rows_send_each_push_once(network: Network, prepared: Load) -> None:
    network.publish(*prepared.messages)
    load.check_each_once(network, prepared)


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


@pytest.mark.nightly
def test_the_rows_of_a_worker_that_is_stopped_inside_a_batch_are_left_to_the_other(
    fleet: Fleet, network: Network, prepared: Load, second: str
) -> None:
    """Its transaction waits for a lock when it is stopped, and stays open when it gets the lock."""
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND "
    with psycopg.connect(fleet.environment["DATABASE_URL"]) as database, stopped(fleet, second):
        database.execute("LOCK TABLE notifications_notificationrequest")
        network.publish(*prepared.messages)
        wait_until(lambda: network.rows(sessions + "wait_event_type = 'Lock'") == [(1,)], what="a batch waits")
        with stopped(fleet, "batches"):
            database.rollback()
            wait_until(lambda: network.rows(sessions + "state = 'idle in transaction'") == [(1,)], what="it is open")
            for pid in batches_of(fleet, second):
                os.kill(pid, signal.SIGCONT)
            load.wait_until_received(network, prepared)
            wait_until(lambda: not unread(network), what="the other worker has the rows", seconds=60)
    load.check_each_once(network, prepared)


@pytest.mark.nightly
def test_a_clock_that_goes_back_stops_nothing_and_sends_nothing_twice(
    fleet: Fleet, network: Network, prepared: Load, second: str, tmp_path: Path
) -> None:
    """The first worker's pushes take longer than the time after which the other one looks for lost rows."""
    goes_back = tmp_path / "goes back"
    arguments = services()["batches"].command[-1:]
    fleet.stop("batches")
    lagging = ["--app=pushserver.worker", "worker", "--hostname=lagging@%h", "--queues=batches", *arguments]
    fleet.start(python("lagging", "-m", "tests.flows.lagging", str(goes_back), *lagging, stop_order=StopOrder.WORKER))
    network.break_gorush(delay_ms=2000)
    try:
        wait_until(lambda: batches_of(fleet, "lagging"), what="the lagging worker processes batches")
        with stopped(fleet, second):
            network.publish(*prepared.messages[: REQUESTS // 2])
            wait_until(network.pushes_under_way, what="gorush has pushes", pause_seconds=0.005)
            goes_back.touch()
            network.publish(*prepared.messages[REQUESTS // 2 :])
            load.wait_until_received(network, prepared)
            wait_until(lambda: not unread(network), what="all requests are decided", pause_seconds=0.005)
            wait_until(network.pushes_under_way, what="gorush has pushes again", pause_seconds=0.005)
        load.check_each_once(network, prepared)
    finally:
        network.mend_gorush()
        fleet.stop("lagging")
        fleet.start(services()["batches"])
