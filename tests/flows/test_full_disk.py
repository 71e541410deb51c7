"""A full disk under PostgreSQL: the server reports it in one line, and nothing is lost."""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg

from embedded.servers import installed
from embedded.servers.folders import own_folder
from embedded.supervisor.guard import Guard
from tests.rig import server as processes
from tests.rig.folders import fill, open_folder, small_disk
from tests.rig.load import check_each_once, prepare
from tests.rig.network import network_of
from tests.rig.postgres import UNSYNCED, Cluster
from tests.rig.server import OF_FLOWS, NewFleet, served, wait_until

POLL_SECONDS = 3
DISK_MIB = 160
FULL = "the disk of PostgreSQL is full"
REQUESTS = 100


def test_a_full_disk_is_reported_in_one_line_and_loses_nothing(
    guard: Guard, new_fleet: NewFleet, tmp_path: Path, require_or_skip: Callable[[bool, str], None]
) -> None:
    """Only the tables are on the small disk. The shared server of the tests will not do: its other sessions would have
    to write to the full disk whenever they need a buffer.
    """
    cluster = Cluster(installed.postgres(tmp_path / "postgres", UNSYNCED), guard)
    with open_folder() as folder, small_disk(folder, require_or_skip, mib=DISK_MIB), ExitStack() as ending:
        folder.chmod(0o711)
        cluster.start()
        ending.callback(cluster.kill)
        own_folder(folder / "tables", cluster.server.account)
        with psycopg.connect(cluster.server.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE TABLESPACE small LOCATION '{folder / 'tables'}'")
            connection.execute("CREATE DATABASE small TABLESPACE small")
        fleet = new_fleet("unfit", **OF_FLOWS, DATABASE_URL=cluster.server.url("small"))
        fleet.run(processes.migrate())
        with served(fleet), closing(network_of(fleet)) as network:
            load = prepare(network, REQUESTS)
            ballast = fill(folder)
            network.publish(*load.messages)
            wait_until(lambda: FULL in fleet.log("bridge") + fleet.log("batches"), what="a process logs the full disk")
            time.sleep(POLL_SECONDS)
            ballast.unlink()
            check_each_once(network, load)
    assert "envelope_failed" not in fleet.log("batches")
    assert "Traceback" not in fleet.log("bridge") + fleet.log("batches")
