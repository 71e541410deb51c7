"""Drill of docs/backup.md: the database is lost and restored into another folder to a point in time.

Everything is real: clusters, archive, node with its store, bridge, workers, gorush. `make restore-drill
REGISTRATIONS=1000000` prints the figures of the page.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from bench.scale import END_WHAT_IS_OPEN
from embedded.servers.ports import free_port
from embedded.servers.postgres import EmbeddedPostgres
from embedded.stack.plan import manage
from embedded.supervisor.guard import Guard
from embedded.supervisor.processes import StopOrder
from tests.drills.backups import Backups, archived_up_to_now, send_to_archive, size_bytes
from tests.rig import server as processes
from tests.rig.folders import open_folder
from tests.rig.network import Network, android, network_of, new_sender
from tests.rig.server import Fleet, wait_for_http, wait_until

REGISTRATIONS = int(os.environ.get("REGISTRATIONS") or 1000)
TIMEOUT_SECONDS = 60 + REGISTRATIONS / 1000
COUNT = "SELECT count(*) FROM registrations_registration"


@contextmanager
def timed(step: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    print(f"{step}: {time.monotonic() - started:.1f} s")  # noqa: T201 - for docs/backup.md


def print_size(name: str, folder: Path) -> None:
    print(f"{name}: {size_bytes(folder) / 2**20:,.0f} MiB")  # noqa: T201


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as path:
        yield path


@pytest.fixture
def peers(folder: Path, guard: Guard, new_redis: Callable[[], str]) -> Iterator[Fleet]:
    """The processes that survive the loss: the node with its store, gorush, Valkey."""
    environment = {
        "REDIS_URL": new_redis(),
        "WAKU_NODES": f"http://127.0.0.1:{free_port()}",
        "GORUSH_URL": f"http://127.0.0.1:{free_port()}",
        "METRICS_DIR": str(folder / "metrics"),
        "REPLY_DEADLINE_SECONDS": "5",
    }
    fleet = Fleet(folder, environment, guard)
    node, gorush = (processes.port_of(environment[name]) for name in ("WAKU_NODES", "GORUSH_URL"))
    fleet.start(processes.node(node), processes.gorush(gorush))
    wait_for_http(f"{environment['WAKU_NODES']}/health", f"{environment['GORUSH_URL']}/healthz")
    yield fleet
    fleet.stop(*fleet.running)


@contextmanager
def serving(peers: Fleet, cluster: EmbeddedPostgres, *, fill: int = 0) -> Iterator[Network]:
    """Serve on a cluster while the block runs. Cluster and server are killed at its end."""
    fleet = Fleet(peers.folder, {**peers.environment, "DATABASE_URL": cluster.url()}, peers.guard)
    fleet.start(cluster.spec())
    try:
        wait_until(cluster.is_ready, what="PostgreSQL", seconds=TIMEOUT_SECONDS)
        fleet.run(processes.migrate())
        if fill:
            _fill(fleet, cluster, fill)
        fleet.start(*processes.services().values())
        with closing(network_of(fleet)) as network:
            yield network
    finally:
        fleet.kill(*fleet.running)


def _fill(fleet: Fleet, cluster: EmbeddedPostgres, registrations: int) -> None:
    rows = [f"--registrations={registrations}", f"--attempts={registrations}"]
    environment = {**fleet.environment, "GORUSH_URL": "", "WAKU_NODES": ""}
    seeding = replace(fleet, environment=environment, running={})
    code, printed = seeding.run_to_end(manage("seed", "seed_bench", *rows, stop_order=StopOrder.FRONT), seconds=3600)
    assert code == 0, printed
    with psycopg.connect(cluster.url(), autocommit=True) as connection:
        connection.execute(END_WHAT_IS_OPEN)


@pytest.mark.nightly
def test_a_lost_database_is_restored_to_a_point_in_time(folder: Path, peers: Fleet) -> None:
    print(f"\n{REGISTRATIONS:,} registrations")  # noqa: T201
    backups = Backups(folder / "backups")
    first = EmbeddedPostgres(folder / "first", backups.settings())
    backups.make_folders(first)
    first.prepare()
    with serving(peers, first, fill=REGISTRATIONS) as network:
        in_backup = network.phone(before := android())
        print_size("data folder", first.data_dir)
        with timed("base backup"):
            backups.take(first)
        print_size("base backup", backups.base)
        in_archive = network.phone(during := android())
        moment = archived_up_to_now(first)
        in_store = network.phone(after := android())
        known = network.rows(COUNT)
        # An error that replication would repeat: only a restore to the time before it helps.
        network.rows("WITH gone AS (DELETE FROM registrations_grant RETURNING 1) SELECT count(*) FROM gone")
        segment = send_to_archive(first)
        wait_until((backups.archive / segment).exists, what="the last segment is in the archive")
    print_size("WAL archive", backups.archive)

    second = EmbeddedPostgres(folder / "second", backups.settings_to_restore(moment))
    with timed("restored, up to the answer of PostgreSQL"):
        backups.restore(second)
        _wait_until_promoted(peers, second)
    with serving(peers, EmbeddedPostgres(second.data_dir)) as network:
        with timed("read back from the store"):
            wait_until(lambda: network.rows(COUNT) == known, what="the third phone", seconds=TIMEOUT_SECONDS)
        for phone, address in ((in_backup, before), (in_archive, during), (in_store, after)):
            sender = new_sender()
            network.notify(sender, network.query(sender, phone))
            assert len(network.pushes_to(address)) == 1
        environment = {**peers.environment, "DATABASE_URL": second.url(), "COLUMNS": "120"}
        Fleet(peers.folder, environment, peers.guard).run(manage("canary", "canary", stop_order=StopOrder.FRONT))


def _wait_until_promoted(peers: Fleet, cluster: EmbeddedPostgres) -> None:
    """Replay the archive until the cluster is promoted. Its settings apply to this start only."""
    fleet = Fleet(peers.folder, peers.environment, peers.guard)
    fleet.start(cluster.spec())

    def is_promoted() -> bool:
        with suppress(psycopg.OperationalError), psycopg.connect(cluster.url("postgres")) as connection:
            return connection.execute("SELECT NOT pg_is_in_recovery()").fetchone() == (True,)
        return False

    wait_until(is_promoted, what="the cluster is promoted", seconds=3600)
    fleet.stop("postgres")
