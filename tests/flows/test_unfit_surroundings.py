"""Unfit surroundings: a database, a node or a gorush that is not as it must be. The server reports it in one line, and
nothing is lost.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

from embedded.servers import installed
from embedded.servers.folders import own_folder
from embedded.stack import plan
from embedded.supervisor.guard import Guard
from embedded.supervisor.processes import StopOrder
from kit.db.reasons import UNAVAILABLE
from tests.folders import fill, open_folder, small_disk
from tests.rig import server as processes
from tests.rig.load import RECIPIENTS, Load, prepare, pushes_by_message, replies_by_message, wait_until_all_processed
from tests.rig.network import Network, android, network_of, new_sender, unregistered_phone
from tests.rig.postgres import UNSYNCED, Cluster
from tests.rig.server import OF_FLOWS, SERVER, Fleet, NewFleet, start, wait_until
from waku_bridge.client import Destination
from waku_bridge.messages import WakuMessage

PROCESSES = ("bridge", "batches", "tasks", "reports")
# Stops in the middle of the migration before the newest one, and before the last steps of `manage.py migrate`.
HALF = """
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
executor = MigrationExecutor(connection)
executor.migrate([leaf for leaf in executor.loader.graph.leaf_nodes() if leaf[0] != "notifications"])
"""
MISSING = re.compile(r"\d+ migrations are missing, the first is notifications.0001_initial: run `manage.py migrate`")
POLL_SECONDS = 3
DISK_MIB = 160
FULL = "the disk of PostgreSQL is full"
REASON = re.compile(r"reason='([^']*)'")
# Log events of each process without PostgreSQL. A bridge logs one or both of its two: while it has a page that it
# cannot store, it does not request its lock.
WITHOUT_IT = {
    "bridge": ("page_not_stored", "lock_session_lost"),
    "batches": ("batch_postponed",),
    "tasks": ("beat_stands_by",),
}
REQUESTS = 100
# More than the WAL segments that PostgreSQL keeps ready.
ENOUGH_SEGMENTS = 20
# Shortens the retries after refused credentials, as an operator may in the console.
SOONER = "UPDATE notifications_gatewayerrorrule SET retry_base_seconds = 5 WHERE outcome = 'config'"
TRIPPED = "SELECT count(*) FROM notifications_halt WHERE kind = 'tripped'"
PROVEN = "SELECT count(*) FROM registrations_route WHERE is_proven"
DISABLED = "SELECT count(*) FROM registrations_route WHERE state = 'disabled'"
GORUSH = "gorush does not answer"


@pytest.fixture
def new_fleet(new_fleet: NewFleet) -> Iterator[NewFleet]:
    """Return the function that makes a server, whose processes are killed after the test."""
    fleets: list[Fleet] = []

    def make(**settings: str) -> Fleet:
        fleets.append(new_fleet("unfit", **OF_FLOWS, **settings))
        return fleets[-1]

    yield make
    for fleet in fleets:
        fleet.kill(*fleet.running)


@pytest.fixture
def disk(require_or_skip: Callable[[bool, str], None]) -> Iterator[Path]:
    """A small disk of its own."""
    with open_folder() as folder, small_disk(folder, require_or_skip, mib=DISK_MIB):
        folder.chmod(0o711)
        yield folder


@pytest.fixture
def cluster(guard: Guard, tmp_path: Path) -> Iterator[Cluster]:
    """A PostgreSQL server whose data are on a disk with space. The shared server will not do: its other sessions would
    have to write to the full disk whenever they need a buffer.
    """
    cluster = Cluster(installed.postgres(tmp_path / "postgres", UNSYNCED), guard)
    cluster.start()
    yield cluster
    cluster.kill()


@pytest.fixture
def on_the_disk(disk: Path, cluster: Cluster, new_fleet: NewFleet) -> Fleet:
    """A server that is not started yet, with a migrated database whose tables are on the small disk."""
    tables = disk / "tables"
    own_folder(tables, cluster.server.account)
    with psycopg.connect(cluster.server.url("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE TABLESPACE small LOCATION '{tables}'")
        connection.execute("CREATE DATABASE small TABLESPACE small")
    fleet = new_fleet(DATABASE_URL=cluster.server.url("small"))
    fleet.run(processes.migrate())
    return fleet


@pytest.fixture
def wholly_on_the_disk(disk: Path, guard: Guard) -> Iterator[Cluster]:
    """A PostgreSQL server with all of its files on the small disk."""
    cluster = Cluster(installed.postgres(disk / "postgres", UNSYNCED), guard)
    cluster.start()
    yield cluster
    cluster.kill()


@pytest.mark.nightly
def test_an_unfinished_migration_stops_all_processing_until_it_is_finished(
    cluster: Cluster, new_fleet: NewFleet
) -> None:
    fleet = new_fleet(DATABASE_URL=cluster.server.url("postgres"))
    fleet.run(plan.manage("half", "shell", "--command", HALF, stop_order=StopOrder.FRONT))
    start(fleet)
    for name in PROCESSES:
        wait_until(lambda name=name: MISSING.search(fleet.log(name)), what=f"{name} logs the missing migrations")
    with closing(network_of(fleet)) as network:
        (envelope,) = network.publish(_request())
        time.sleep(POLL_SECONDS)
        assert network.rows("SELECT count(*) FROM waku_bridge_inboundenvelope") == [(0,)]
        fleet.run(processes.migrate())
        assert network.how_it_ended(envelope) == ("processed", "")
    for name in PROCESSES:
        # One line, and another one for a process that checks while migrations run, as fewer are missing then.
        reported = [REASON.findall(line) for line in fleet.log(name).splitlines() if "start_waits" in line]
        assert reported
        assert all(before != after for before, after in pairwise(reported)), reported
        assert "Traceback" not in fleet.log(name)


def test_a_full_disk_is_reported_in_one_line_and_loses_nothing(disk: Path, on_the_disk: Fleet) -> None:
    fleet = on_the_disk
    start(fleet)
    with closing(network_of(fleet)) as network:
        load = prepare(network, REQUESTS)
        with _filled(disk):
            network.publish(*load.messages)
            wait_until(lambda: FULL in fleet.log("bridge") + fleet.log("batches"), what="a process logs the full disk")
            time.sleep(POLL_SECONDS)
        _all_are_processed_once(network, load)
    assert "envelope_failed" not in fleet.log("batches")
    assert "Traceback" not in fleet.log("bridge") + fleet.log("batches")


@pytest.mark.nightly
def test_a_full_disk_that_ends_postgresql_is_reported_in_one_line_and_loses_nothing(
    disk: Path, wholly_on_the_disk: Cluster, new_fleet: NewFleet
) -> None:
    """PostgreSQL ends at once when its WAL has no space, and again when it recovers."""
    cluster = wholly_on_the_disk
    fleet = new_fleet(DATABASE_URL=cluster.server.url())
    fleet.run(processes.migrate())
    start(fleet)
    with closing(network_of(fleet)) as network:
        load = prepare(network, REQUESTS)
        with _filled(disk):
            network.publish(*load.messages[::2])
            _need_another_segment(cluster)
            wait_until(lambda: not cluster.is_running(), what="PostgreSQL has ended")
            network.publish(*load.messages[1::2])  # the bridge may have stored the others already
            for name in WITHOUT_IT:
                wait_until(lambda name=name: _reasons(fleet, name), what=f"{name} logs the outage")
    cluster.start()
    with closing(network_of(fleet)) as network:
        _all_are_processed_once(network, load)
    for name in WITHOUT_IT:
        reported = _reasons(fleet, name)
        assert any(UNAVAILABLE in why or FULL in why for why in reported), reported
        assert reported
        assert all(before != after for before, after in pairwise(reported)), reported
    for name in PROCESSES:
        assert "Traceback" not in fleet.log(name)


def test_a_node_of_another_network_and_a_gorush_that_does_not_start_have_a_line_each(
    new_fleet: NewFleet,
) -> None:
    """A gorush without the keys of Apple and Google ends at once."""
    fleet = new_fleet()
    node = processes.node(processes.port_of(fleet.environment["WAKU_NODES"]))
    elsewhere = [part.replace(processes.PUBSUB_TOPIC, "/waku/2/rs/1/32") for part in node.command]
    fleet.start(replace(node, command=elsewhere), processes.services()["tasks"])
    wait_until(lambda: "wrong_cluster" in fleet.log("tasks"), what="the wrong node is logged")
    wait_until(lambda: "unreachable" in fleet.log("tasks"), what="the missing gorush is logged")
    reported = [line for line in fleet.log("tasks").splitlines() if "_deviates " in line]
    assert [
        sum(word in line for line in reported) for word in ("it is in cluster 1, and we read cluster 16", GORUSH)
    ] == [
        1,
        1,
    ]


@pytest.mark.nightly
def test_refused_credentials_are_reported_and_disable_no_token(new_fleet: NewFleet) -> None:
    """Requests that come meanwhile wait. They are delivered with the right credentials, and refused pushes a few
    seconds later.
    """
    fleet = new_fleet()
    fleet.rows(SOONER)
    start(fleet)
    with closing(network_of(fleet)) as network:
        load = prepare(network, REQUESTS, senders_count=RECIPIENTS)
        first, later = load.messages[: 2 * RECIPIENTS], load.messages[2 * RECIPIENTS :]
        network.publish(*first)
        wait_until(lambda: network.rows(PROVEN) == [(RECIPIENTS,)], what="each phone has a push")
        network.break_gorush(refuses_keys=True)
        network.publish(*later)
        wait_until(lambda: network.rows(TRIPPED) == [(2,)], what="both apps are tripped")
        time.sleep(POLL_SECONDS)
        assert network.rows(DISABLED) == [(0,)]
        network.mend_gorush()
        _all_are_processed_once(network, load)
        assert network.rows(DISABLED) == [(0,)]
    reported = [line for line in fleet.log("batches").splitlines() if "channel_tripped" in line]
    assert [sum(code in line for line in reported) for code in ("InvalidProviderToken", "permission")] == [1, 1]


def _all_are_processed_once(network: Network, load: Load) -> None:
    wait_until_all_processed(network, load)
    pushes, replies = pushes_by_message(network, load.message_ids), replies_by_message(network, load)
    assert [len(pushes[each]) for each in load.message_ids] == [1] * REQUESTS
    assert all(replies[each] for each in load.message_ids)


def _need_another_segment(cluster: Cluster) -> None:
    """Begin WAL segments, as the archive does each minute even without writes."""
    with psycopg.connect(cluster.server.url(), autocommit=True) as connection, suppress(psycopg.OperationalError):
        for _ in range(ENOUGH_SEGMENTS):
            connection.execute("SELECT pg_logical_emit_message(true, 'tests', ''), pg_switch_wal()")


def _reasons(fleet: Fleet, name: str) -> list[str]:
    """Return the failed action and its reason for each line of a log."""
    return [
        f"{event}: {found[1]}"
        for line in fleet.log(name).splitlines()
        for event in WITHOUT_IT[name]
        if event in line and (found := REASON.search(line))
    ]


@contextmanager
def _filled(disk: Path) -> Iterator[None]:
    """Keep the disk full to the last byte while the block runs."""
    ballast = fill(disk)
    try:
        yield
    finally:
        ballast.unlink()


def _request() -> WakuMessage:
    """Return a request about an unknown installation, which is answered with an error."""
    phone, sender = unregistered_phone(), new_sender()
    phone.change(android())
    destination = Destination(
        client=phone.identity.pub33,
        server=SERVER.pub33,
        public_key_hash=phone.identity.key_hash,
        installation_id=phone.installation_id,
        access_token=phone.access_token,
        version=phone.version,
    )
    return sender.request([destination], sender.one_to_one(), os.urandom(32), timestamp_ns=time.time_ns()).message
