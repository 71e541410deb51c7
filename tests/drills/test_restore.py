"""Drill of docs/backup.md: the database is lost and restored into another folder to a point in time.

Everything is real: clusters, archive, node with its store, bridge, workers, gorush. `make restore-drill
REGISTRATIONS=1000000` prints the figures of the page.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
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
from tests.folders import open_folder
from tests.rig import server as processes
from tests.rig.network import Network, android, network_of, new_sender
from tests.rig.server import Fleet, wait_for_http, wait_until
from waku_bridge.client import RegisteringClient

REGISTRATIONS = int(os.environ.get("REGISTRATIONS") or 1000)
TIMEOUT_SECONDS = 60 + REGISTRATIONS / 1000
COUNT = "SELECT count(*) FROM registrations_registration"


@dataclass
class Figures:
    """Durations and sizes of the drill, printed at its end."""

    lines: list[str] = field(default_factory=list)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.lines.append(f"{step}: {time.monotonic() - started:.1f} s")

    def size(self, name: str, folder: Path) -> None:
        self.lines.append(f"{name}: {size_bytes(folder) / 2**20:,.0f} MiB")


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
    spec = manage(
        "seed",
        "seed_bench",
        f"--registrations={registrations}",
        f"--attempts={registrations}",
        stop_order=StopOrder.FRONT,
    )
    environment = {**fleet.environment, "GORUSH_URL": "", "WAKU_NODES": ""}
    seeding = Fleet(fleet.folder, environment, fleet.guard)
    seeding.start(replace(spec, environment=spec.environment))
    assert seeding.running.pop("seed").wait(timeout=3600) == 0, seeding.log("seed")
    with psycopg.connect(cluster.url(), autocommit=True) as connection:
        connection.execute(END_WHAT_IS_OPEN)


@pytest.mark.nightly
def test_a_lost_database_is_restored_to_a_point_in_time(folder: Path, peers: Fleet) -> None:
    figures, backups = Figures(), Backups(folder / "backups")
    first = EmbeddedPostgres(folder / "first", backups.settings())
    backups.make_folders(first)
    first.prepare()
    with serving(peers, first, fill=REGISTRATIONS) as network:
        in_backup = network.phone(before := android())
        figures.size("data folder", first.data_dir)
        with figures.timed("base backup"):
            backups.take(first)
        figures.size("base backup", backups.base)
        in_archive = network.phone(during := android())
        moment = archived_up_to_now(first)
        in_store = network.phone(after := android())
        known = network.rows(COUNT)
        # An error that replication would repeat: only a restore to the time before it helps.
        network.rows("WITH gone AS (DELETE FROM registrations_grant RETURNING 1) SELECT count(*) FROM gone")
        segment = send_to_archive(first)
        wait_until((backups.archive / segment).exists, what="the last segment is in the archive")
    figures.size("WAL archive", backups.archive)

    second = EmbeddedPostgres(folder / "second", backups.settings_to_restore(moment))
    with figures.timed("restored, up to the answer of PostgreSQL"):
        backups.restore(second)
        _wait_until_promoted(peers, second)
    with ExitStack() as stack:
        network = stack.enter_context(serving(peers, EmbeddedPostgres(second.data_dir)))
        with figures.timed("read back from the store"):
            wait_until(lambda: network.rows(COUNT) == known, what="the third phone", seconds=TIMEOUT_SECONDS)
        for phone, address in ((in_backup, before), (in_archive, during), (in_store, after)):
            _is_notified(network, phone, address)
        assert "Every link holds" in _canary(peers, second)
    print("\n" + "\n".join([f"{REGISTRATIONS:,} registrations", *figures.lines]))  # noqa: T201 - for docs/backup.md


def _wait_until_promoted(peers: Fleet, cluster: EmbeddedPostgres) -> None:
    """Replay the archive until the cluster is promoted. Its settings apply to this start only."""
    fleet = Fleet(peers.folder, peers.environment, peers.guard)
    fleet.start(cluster.spec())

    def is_promoted() -> bool:
        with psycopg.connect(cluster.url("postgres")) as connection:
            return connection.execute("SELECT NOT pg_is_in_recovery()").fetchone() == (True,)

    wait_until(lambda: cluster_answers(is_promoted), what=f"promotion: {fleet.log('postgres')}", seconds=3600)
    fleet.stop("postgres")


def cluster_answers(question: Callable[[], bool]) -> bool:
    try:
        return question()
    except psycopg.OperationalError:
        return False


def _is_notified(network: Network, phone: RegisteringClient, address: object) -> None:
    sender = new_sender()
    network.notify(sender, network.query(sender, phone))
    assert len(network.pushes_to(address)) == 1


def _canary(peers: Fleet, cluster: EmbeddedPostgres) -> str:
    environment = {**peers.environment, "DATABASE_URL": cluster.url(), "COLUMNS": "120"}
    fleet = Fleet(peers.folder, environment, peers.guard)
    fleet.run(manage("canary", "canary", stop_order=StopOrder.FRONT))
    return fleet.log("canary")
