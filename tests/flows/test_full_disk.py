"""A full disk under PostgreSQL: the server reports it in one line, and nothing is lost."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

from embedded.servers import installed
from embedded.servers.folders import own_folder
from embedded.supervisor.guard import Guard
from kit.db.reasons import UNAVAILABLE
from tests.rig import server as processes
from tests.rig.folders import fill, open_folder, small_disk
from tests.rig.load import Load, prepare, pushes_by_message, replies_by_message, wait_until_all_processed
from tests.rig.network import Network, network_of
from tests.rig.postgres import UNSYNCED, Cluster
from tests.rig.server import OF_FLOWS, Fleet, NewFleet, start, wait_until

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


@pytest.fixture
def disk(require_or_skip: Callable[[bool, str], None]) -> Iterator[Path]:
    """A small disk of its own."""
    with open_folder() as folder, small_disk(folder, require_or_skip, mib=DISK_MIB):
        folder.chmod(0o711)
        yield folder


@pytest.fixture
def new_cluster(guard: Guard) -> Iterator[Callable[[Path], Cluster]]:
    """Return a function that starts a PostgreSQL server whose data are in a folder. The shared server will not do: its
    other sessions would have to write to the full disk whenever they need a buffer.
    """
    clusters: list[Cluster] = []

    def start(folder: Path) -> Cluster:
        clusters.append(Cluster(installed.postgres(folder / "postgres", UNSYNCED), guard))
        clusters[-1].start()
        return clusters[-1]

    yield start
    for cluster in clusters:
        cluster.kill()


@contextmanager
def started(new_fleet: NewFleet, url: str) -> Iterator[Fleet]:
    """Start a server with this database, and kill it at the end."""
    fleet = new_fleet("unfit", **OF_FLOWS, DATABASE_URL=url)
    fleet.run(processes.migrate())
    try:
        start(fleet)
        yield fleet
    finally:
        fleet.kill(*fleet.running)


def test_a_full_disk_is_reported_in_one_line_and_loses_nothing(
    disk: Path, new_cluster: Callable[[Path], Cluster], new_fleet: NewFleet, tmp_path: Path
) -> None:
    """Only the tables are on the small disk."""
    server = new_cluster(tmp_path).server
    own_folder(disk / "tables", server.account)
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE TABLESPACE small LOCATION '{disk / 'tables'}'")
        connection.execute("CREATE DATABASE small TABLESPACE small")
    with started(new_fleet, server.url("small")) as fleet, closing(network_of(fleet)) as network:
        load = prepare(network, REQUESTS)
        with _filled(disk):
            network.publish(*load.messages)
            wait_until(lambda: FULL in fleet.log("bridge") + fleet.log("batches"), what="a process logs the full disk")
            time.sleep(POLL_SECONDS)
        _assert_each_is_processed_once(network, load)
    assert "envelope_failed" not in fleet.log("batches")
    assert "Traceback" not in fleet.log("bridge") + fleet.log("batches")


@pytest.mark.nightly
def test_a_full_disk_that_ends_postgresql_is_reported_in_one_line_and_loses_nothing(
    disk: Path, new_cluster: Callable[[Path], Cluster], new_fleet: NewFleet
) -> None:
    """PostgreSQL ends at once when its WAL has no space, and again when it recovers."""
    cluster = new_cluster(disk)
    with started(new_fleet, cluster.server.url()) as fleet:
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
            _assert_each_is_processed_once(network, load)
    for name in WITHOUT_IT:
        reported = _reasons(fleet, name)
        assert any(UNAVAILABLE in why or FULL in why for why in reported), reported
        assert all(before != after for before, after in pairwise(reported)), reported
    assert not [name for name in (*WITHOUT_IT, "reports") if "Traceback" in fleet.log(name)]


def _assert_each_is_processed_once(network: Network, load: Load) -> None:
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
