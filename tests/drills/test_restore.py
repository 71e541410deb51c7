"""Drill of docs/backup.md: the database is lost and restored into another folder to a point in time.

Everything is real: clusters, archive, node with its store, bridge, workers, gorush. `make restore-drill
REGISTRATIONS=1000000` prints the figures of the page.
"""

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from bench.scale import END_WHAT_IS_OPEN
from embedded.servers.folders import own_folder
from embedded.servers.postgres import EmbeddedPostgres
from embedded.stack.plan import manage
from embedded.supervisor.processes import StopOrder
from tests.rig import server as processes
from tests.rig.folders import open_folder
from tests.rig.ledger import say
from tests.rig.network import Network, android, network_of, new_sender
from tests.rig.postgres import run_program
from tests.rig.server import Fleet, NewFleet, wait_for_http, wait_until

REGISTRATIONS = int(os.environ.get("REGISTRATIONS") or 1000)
TIMEOUT_SECONDS = 180 + REGISTRATIONS / 1000
COUNT = "SELECT count(*) FROM registrations_registration"
ROWS = [f"--registrations={REGISTRATIONS}", f"--attempts={REGISTRATIONS}"]


def archiving_to(archive: Path) -> dict[str, str]:
    """Return settings of the cluster that is backed up. A WAL segment appears in the archive once it is whole."""
    kept = f"{archive}/%f"
    command = f"test ! -f {kept} && cp %p {kept}.part && sync {kept}.part && mv {kept}.part {kept}"
    return {"archive_mode": "on", "archive_command": command, "archive_timeout": "60"}


@contextmanager
def timed(step: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    say(f"{step}: {time.monotonic() - started:.1f} s")


def say_size(name: str, folder: Path) -> None:
    size_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    say(f"{name}: {size_bytes / 2**20:,.0f} MiB")


@contextmanager
def running(peers: Fleet, cluster: EmbeddedPostgres) -> Iterator[Fleet]:
    """Run a cluster and what the block starts beside it. All are killed at its end."""
    fleet = replace(peers, environment=peers.environment | {"DATABASE_URL": cluster.url()}, running={})
    fleet.start(cluster.spec())
    try:
        yield fleet
    finally:
        fleet.kill(*fleet.running)


@contextmanager
def serving(fleet: Fleet, cluster: EmbeddedPostgres, *, rows: list[str]) -> Iterator[Network]:
    """Serve on a cluster, which has these rows first."""
    wait_until(cluster.is_ready, what="PostgreSQL", seconds=TIMEOUT_SECONDS)
    fleet.run(processes.migrate())
    if rows:
        alone = replace(fleet, environment=fleet.environment | {"GORUSH_URL": "", "WAKU_NODES": ""}, running={})
        code, printed = alone.run_to_end(manage("seed", "seed_bench", *rows, stop_order=StopOrder.FRONT), seconds=3600)
        assert code == 0, printed
        fleet.rows(END_WHAT_IS_OPEN)
    fleet.start(*processes.services().values())
    with closing(network_of(fleet)) as network:
        yield network


@pytest.mark.nightly
def test_a_lost_database_is_restored_to_a_point_in_time(new_fleet: NewFleet) -> None:
    say(f"{REGISTRATIONS:,} registrations")
    peers = new_fleet("restore", DATABASE_URL="none", REPLY_DEADLINE_SECONDS="5")  # they survive the loss
    node_url, gorush_url = peers.environment["WAKU_NODES"], peers.environment["GORUSH_URL"]
    peers.start(processes.node(processes.port_of(node_url)), processes.gorush(processes.port_of(gorush_url)))
    wait_for_http(f"{node_url}/health", f"{gorush_url}/healthz")
    with open_folder() as folder:
        _lose_and_restore(peers, folder / "backups", folder / "first", folder / "second" / "data")
    peers.stop(*peers.running)


def _lose_and_restore(peers: Fleet, backups: Path, lost: Path, restored: Path) -> None:
    base, archive = backups / "base", backups / "archive"
    first = EmbeddedPostgres(lost, archiving_to(archive))
    for made in (backups, archive):
        own_folder(made, first.account)
    first.prepare()
    with running(peers, first) as fleet, serving(fleet, first, rows=ROWS) as network:
        in_backup = network.phone(before := android())
        say_size("data folder", lost)
        with timed("base backup"):
            options = ["--pgdata", str(base), "--checkpoint=fast", "--wal-method=stream"]
            run_program(first, "pg_basebackup", "--host", str(first.socket_dir), "--username", "postgres", *options)
        say_size("base backup", base)
        in_archive = network.phone(during := android())
        [(moment,)] = network.rows("SELECT clock_timestamp()")
        # Without a record after the target, there is no segment to switch, and recovery does not stop at the target.
        network.rows("SELECT pg_logical_emit_message(true, 'drill', 'after')")
        in_store = network.phone(after := android())
        [(known,)] = network.rows(COUNT)
        # An error that replication would repeat: only a restore to the time before it helps.
        network.rows("WITH gone AS (DELETE FROM registrations_grant RETURNING 1) SELECT count(*) FROM gone")
        [(segment,)] = network.rows("SELECT pg_walfile_name(pg_switch_wal())")  # as archive_timeout does in a minute
        wait_until((archive / segment).exists, what="the last segment is in the archive")
    say_size("WAL archive", archive)

    replaying = {
        "restore_command": f"cp {archive}/%f %p",
        "recovery_target_time": moment.isoformat(),
        "recovery_target_action": "promote",
    }
    second = EmbeddedPostgres(restored, replaying)
    with timed("restored, up to the answer of PostgreSQL"):
        own_folder(restored.parent, second.account)
        run_program(second, "cp", "--archive", str(base), str(restored))
        run_program(second, "touch", str(restored / "recovery.signal"))
        with running(peers, second) as fleet:
            wait_until(lambda: _is_promoted(second), what="the cluster is promoted", seconds=3600)
            fleet.stop("postgres")
    second = EmbeddedPostgres(restored)
    with running(peers, second) as fleet, serving(fleet, second, rows=[]) as network:
        with timed("read back from the store"):
            wait_until(
                lambda: network.rows(COUNT) == [(known,)], what="the third phone is back", seconds=TIMEOUT_SECONDS
            )
        for phone, address in ((in_backup, before), (in_archive, during), (in_store, after)):
            sender = new_sender()
            network.notify(sender, network.query(sender, phone))
            assert len(network.pushes_to(address)) == 1
        fleet.run(manage("canary", "canary", stop_order=StopOrder.FRONT))


def _is_promoted(cluster: EmbeddedPostgres) -> bool:
    with suppress(psycopg.OperationalError), psycopg.connect(cluster.url("postgres")) as connection:
        return connection.execute("SELECT NOT pg_is_in_recovery()").fetchone() == (True,)
    return False
