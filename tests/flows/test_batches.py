"""Task that processes batches without end: each child of the worker `batches` runs it once, through failures of child,
parent and broker.

The storm (`tests/chaos`) kills a whole worker, and `test_metrics` one child.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import psutil
import pytest
import redis
from celery import Celery

from embedded.servers.ports import free_port
from embedded.servers.valkey import EmbeddedValkey
from embedded.stack import plan
from embedded.supervisor.processes import ProcessSpec
from kit.processes.leader import LIVE_WORKERS
from tests.rig import load
from tests.rig import server as processes
from tests.rig.budget import first_everyday
from tests.rig.network import Network, network_of, new_sender
from tests.rig.server import OF_FLOWS, Fleet, NewFleet, services, wait_until

CHILDREN = 2
REQUESTS = 100
# Each process that processes batches holds this lock as long as its session lives.
LOOPS = """
    SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'advisory' AND classid = 0 AND objid = %s AND granted AND datname = current_database()
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> EmbeddedValkey:
    return EmbeddedValkey(tmp_path_factory.mktemp("valkey"), free_port())


@pytest.fixture(scope="module")
def lone(broker: EmbeddedValkey, new_fleet: NewFleet) -> Iterator[Fleet]:
    """A server with a broker of its own, and two processes that process batches."""
    fleet = new_fleet("batches", **OF_FLOWS, REDIS_URL=broker.url)
    ports = {name: processes.port_of(fleet.environment[name]) for name in ("WAKU_NODES", "GORUSH_URL")}
    try:
        start_broker(fleet, broker)
        planned = services()
        fleet.start(processes.node(ports["WAKU_NODES"]), processes.gorush(ports["GORUSH_URL"]))
        fleet.start(planned["bridge"], planned["tasks"], batches())
        yield fleet
    finally:
        fleet.kill(*fleet.running)


@pytest.fixture
def lone_network(lone: Fleet) -> Iterator[Network]:
    with closing(network_of(lone)) as network:
        wait_until(lambda: loops(network) == CHILDREN, what="each child processes batches")
        yield network


def batches() -> ProcessSpec:
    return plan.worker("batches", "batches", "--pool=prefork", f"--concurrency={CHILDREN}")


def start_broker(fleet: Fleet, broker: EmbeddedValkey) -> None:
    spec = broker.spec()
    spec.prepare()
    fleet.start(spec)
    wait_until(broker.is_ready, what="the broker answers")


def loops(network: Network) -> int:
    """Return the number of processes that process batches."""
    [(count,)] = network.rows(LOOPS, LIVE_WORKERS)
    return int(count)


def children(fleet: Fleet) -> list[psutil.Process]:
    return list(psutil.Process(fleet.running["batches"].pid).children())


def test_batches_go_on_with_an_emptied_broker_and_without_one_and_only_a_new_child_waits_for_it(
    lone: Fleet, lone_network: Network, broker: EmbeddedValkey
) -> None:
    prepared = load.prepare(lone_network, REQUESTS)
    parent, (killed, neighbour) = lone.running["batches"], children(lone)
    with redis.Redis.from_url(broker.url) as client:
        client.flushall()
    lone.kill("valkey")
    lone_network.publish(*prepared.messages)
    load.check_each_once(lone_network, prepared)
    # the key of a new phone's query topic is derived without a task
    assert lone_network.query(new_sender(), lone_network.phone())
    assert children(lone) == [killed, neighbour]
    killed.kill()
    wait_until(lambda: loops(lone_network) == 1, what="one child processes batches")
    start_broker(lone, broker)
    wait_until(lambda: loops(lone_network) == CHILDREN, what="another child processes batches, too")
    assert parent.poll() is None
    assert neighbour in children(lone)


def test_a_worker_ends_and_starts_while_the_broker_is_away_and_then_waits_for_it(
    lone: Fleet, lone_network: Network, broker: EmbeddedValkey
) -> None:
    lone.kill("valkey")
    parent = lone.running["batches"]
    lone.stop("batches")
    assert parent.returncode == 0
    logged = len(lone.log("batches"))
    lone.start(batches())
    wait_until(
        lambda: "Cannot connect to redis" in lone.log("batches")[logged:],
        what="the worker logs the dependency that it waits for",
    )
    assert loops(lone_network) == 0
    start_broker(lone, broker)
    wait_until(lambda: loops(lone_network) == CHILDREN, what="each child processes batches")


def test_surplus_task_messages_start_nothing_even_when_the_worker_stops(fleet: Fleet, network: Network) -> None:
    wait_until(lambda: loops(network) == 1, what="the child processes batches")
    parent, before, logged = fleet.running["batches"], children(fleet), len(fleet.log("batches"))
    app = Celery(broker=fleet.environment["REDIS_URL"], set_as_current=False)
    for _ in range(3):
        app.send_task("notifications.tasks.process_batches", queue="batches", expires=1)
    network.wait_until_answered()
    with redis.Redis.from_url(fleet.environment["REDIS_URL"]) as client:
        assert client.llen("batches") == 3
    assert (children(fleet), loops(network)) == (before, 1)
    fleet.stop("batches")
    assert (parent.returncode, "Traceback" in fleet.log("batches")[logged:]) == (0, False)
    wait_until(lambda: loops(network) == 0, what="PostgreSQL ends the session of the child")
    fleet.start(services()["batches"])
    wait_until(lambda: loops(network) == 1, what="the surplus messages are void, and the new worker's message is not")


def test_children_of_a_killed_parent_end_with_it(fleet: Fleet, network: Network) -> None:
    wait_until(lambda: loops(network) == 1, what="the child processes batches")
    orphans = children(fleet)
    os.kill(fleet.running["batches"].pid, signal.SIGKILL)
    assert psutil.wait_procs(orphans, timeout=20)[1] == []
    fleet.kill("batches")
    fleet.start(services()["batches"])
    wait_until(lambda: loops(network) == 1, what="another child processes batches")


@pytest.mark.parametrize(
    "arguments", first_everyday(["--queues=batches,keys"], [], ["--queues=batches", "--pool=threads"])
)
def test_a_worker_that_would_do_something_beside_batches_refuses_to_start(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "celery", "--app=pushserver.worker", "--quiet", "worker", *arguments]
    refused = subprocess.run(command, check=False, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "needs a worker of its own" in refused.stderr
