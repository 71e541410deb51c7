"""The task that never ends: one in each child of the worker `batches`, whatever happens to child, parent and broker."""

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import psycopg
import pytest
import redis
from celery import Celery

from kit.buckets.share import LIVE
from pushserver.embedded.ports import free_port
from pushserver.embedded.postgres import EmbeddedPostgres
from pushserver.embedded.valkey import EmbeddedValkey
from pushserver.stack import plan
from pushserver.supervisor.guard import Guard
from pushserver.supervisor.processes import ProcessSpec, Stage
from tests.flows import fleet as processes
from tests.flows import load
from tests.flows.conftest import environment_of, network_of
from tests.flows.fleet import Fleet, wait_until
from tests.flows.load import Load
from tests.flows.network import Network

CHILDREN = 2
REQUESTS = 100
# Each process that makes batches holds this lock for as long as its session lives.
LOOPS = """
    SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@pytest.fixture
def broker(tmp_path: Path) -> EmbeddedValkey:
    return EmbeddedValkey(tmp_path / "valkey", free_port())


@pytest.fixture
def fleet(
    broker: EmbeddedValkey,
    postgres: EmbeddedPostgres,
    new_database: Callable[[str], str],
    guard: Guard,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Fleet]:
    """A server with a broker of its own, and two processes that make batches."""
    environment = environment_of(postgres.url(new_database(f"batches_{tmp_path.name}")), broker.url, tmp_path_factory)
    fleet = Fleet(tmp_path, environment | {"DATABASE_LOCK_SECONDS": "60", "DATABASE_STATEMENT_SECONDS": "60"}, guard)
    ports = {name: int(environment[name].rsplit(":", 1)[1]) for name in ("WAKU_NODES", "GORUSH_URL")}
    try:
        start_broker(fleet, broker)
        services = processes.services(tmp_path)
        fleet.start(processes.node(ports["WAKU_NODES"]), processes.gorush(ports["GORUSH_URL"]))
        fleet.start(services["bridge"], services["tasks"], services["beat"], batches())
        yield fleet
    finally:
        fleet.kill(*fleet.running)


@pytest.fixture
def network(fleet: Fleet) -> Iterator[Network]:
    with closing(network_of(fleet)) as network:
        wait_until(lambda: loops(network) == CHILDREN, what="each child makes batches")
        yield network


def batches() -> ProcessSpec:
    return plan.worker("batches", "batches", "--pool=prefork", f"--concurrency={CHILDREN}")


def start_broker(fleet: Fleet, broker: EmbeddedValkey) -> None:
    spec = broker.spec()
    spec.prepare()
    fleet.start(spec)
    wait_until(broker.is_ready, what="the broker answers")


def loops(network: Network) -> int:
    """Return how many processes make batches."""
    [(count,)] = network.rows(LOOPS, LIVE)
    return int(count)


def children(fleet: Fleet) -> set[int]:
    return {child.pid for child in psutil.Process(fleet.running["batches"].pid).children()}


def replaced(fleet: Fleet, killed: int) -> bool:
    found = children(fleet)
    return killed not in found and len(found) == CHILDREN


def check(network: Network, prepared: Load) -> None:
    """Each push went out once, and each request was answered once."""
    load.wait_until_worked_off(network, prepared)
    pushes = load.pushes_by_message(network, prepared)
    assert Counter(len(each) for each in pushes.values()) == {1: REQUESTS}
    assert load.replies_by_message(network, prepared) == Counter(prepared.message_ids)


def test_a_child_that_is_killed_is_followed_by_another_and_its_neighbour_goes_on(
    fleet: Fleet, network: Network
) -> None:
    prepared = load.prepare(network, REQUESTS)
    killed, neighbour = sorted(children(fleet))
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: replaced(fleet, killed), what="there is another child", pause_seconds=0.01)
    network.publish(*prepared.messages)
    check(network, prepared)
    wait_until(lambda: loops(network) == CHILDREN, what="the new child makes batches")
    assert neighbour in children(fleet)


def test_a_broker_that_goes_away_costs_nothing_and_only_a_new_child_waits_for_it(
    fleet: Fleet, network: Network, broker: EmbeddedValkey
) -> None:
    prepared = load.prepare(network, REQUESTS)
    parent, before = fleet.running["batches"], children(fleet)
    fleet.kill("valkey")
    network.publish(*prepared.messages)
    check(network, prepared)
    assert children(fleet) == before
    killed = min(before)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: replaced(fleet, killed), what="there is another child")
    assert loops(network) == CHILDREN - 1
    start_broker(fleet, broker)
    wait_until(lambda: loops(network) == CHILDREN, what="the new child makes batches")
    assert parent.poll() is None
    assert before - {killed} < children(fleet)


def test_a_worker_that_starts_while_the_broker_is_away_waits_for_it(
    fleet: Fleet, network: Network, broker: EmbeddedValkey
) -> None:
    fleet.stop("batches")
    fleet.kill("valkey")
    fleet.start(batches())
    wait_until(lambda: "Cannot connect to redis" in fleet.log("batches"), what="the worker says what it waits for")
    assert loops(network) == 0
    start_broker(fleet, broker)
    wait_until(lambda: loops(network) == CHILDREN, what="each child makes batches")


def test_messages_beyond_the_free_children_start_nothing(fleet: Fleet, network: Network, broker: EmbeddedValkey) -> None:
    app = Celery(broker=broker.url)
    for _ in range(2 * CHILDREN):
        app.send_task("notifications.tasks.process_batches", queue="batches", expires=1)
    before, parent = children(fleet), fleet.running["batches"]
    prepared = load.prepare(network, REQUESTS)
    network.publish(*prepared.messages)
    check(network, prepared)
    assert (children(fleet), loops(network)) == (before, CHILDREN)
    with redis.Redis.from_url(broker.url) as client:
        assert client.llen("batches") == 2 * CHILDREN
    parent.terminate()
    assert parent.wait() == 0
    assert (loops(network), "Traceback" in fleet.log("batches")) == (0, False)


def test_children_of_a_killed_parent_end_and_what_they_held_is_taken_up(fleet: Fleet, network: Network) -> None:
    prepared = load.prepare(network, REQUESTS)
    orphans = [psutil.Process(pid) for pid in children(fleet)]
    network.break_gorush(delay_ms=2000)
    network.publish(*prepared.messages)
    wait_until(network.pushes_under_way, what="gorush has pushes", pause_seconds=0.005)
    os.kill(fleet.running["batches"].pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(orphans, timeout=20)
    assert alive == []
    network.mend_gorush()
    fleet.kill("batches")
    fleet.start(batches())
    load.wait_until_worked_off(network, prepared)
    pushes = load.pushes_by_message(network, prepared)
    assert {len({push["collapse_id"] for push in each}) for each in pushes.values()} == {1}
    assert load.replies_by_message(network, prepared) == Counter(prepared.message_ids)


@pytest.mark.nightly
def test_a_statement_that_hangs_does_not_keep_a_stopped_worker(fleet: Fleet, network: Network) -> None:
    parent, orphans = fleet.running["batches"], [psutil.Process(pid) for pid in children(fleet)]
    with psycopg.connect(fleet.environment["DATABASE_URL"]) as locking:
        locking.execute("LOCK TABLE notifications_notification, waku_bridge_inboundenvelope")
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        wait_until(lambda: network.rows(waiting)[0][0] >= CHILDREN, what="the children wait for the lock")
        parent.terminate()
        parent.wait()
        assert [child for child in orphans if child.is_running()] == []
    assert fleet.log("batches").count("batches_cut_off") == CHILDREN


@pytest.mark.parametrize("arguments", [["--queues=batches,keys"], [], ["--queues=batches", "--pool=threads"]])
def test_a_worker_that_would_do_something_beside_batches_refuses_to_start(arguments: list[str]) -> None:
    spec = plan.celery("mixed", "worker", *arguments, stage=Stage.WORKER)
    refused = subprocess.run(spec.command, check=False, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "needs a worker of its own" in refused.stderr
