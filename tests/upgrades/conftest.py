"""Installation of the last release at work: `manage.py up` in a folder of its own, between a node and a gorush."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, SIGUSR1
from uuid import uuid4

import psycopg
import pytest

from embedded.servers import prosody
from embedded.servers.ports import free_port
from embedded.servers.postgres import EmbeddedPostgres
from embedded.stack.plan import manage
from embedded.supervisor.guard import Guard
from embedded.supervisor.processes import StopOrder
from tests.interop.xmpp import peers
from tests.interop.xmpp.service import APP, Service
from tests.rig import server as processes
from tests.rig.network import Network, network_of
from tests.rig.server import UNLIMITED, Fleet, Up
from tests.upgrades.releases import copy_working_tree, last_release, make_up_a_migration, pull, unpack_release

SECRETS = ("SECRET_KEY", "FIELD_ENCRYPTION_KEYS", "SERVER_PRIVATE_KEY")
CANNOT = "this clone lacks the last release: `git fetch --unshallow --tags` gets it"


@dataclass(frozen=True, slots=True)
class Installation:
    """A running installation. The processes run the code in ``folder``, which is first ``old`` and then ``new``."""

    folder: Path
    old: Path
    new: Path
    fleet: Fleet
    up: Up
    network: Network
    xmpp: Service

    @property
    def replacements(self) -> int:
        return self.up.output().count(" Replaced.")

    def begin_to_replace(self, code: Path) -> None:
        """Begin an upgrade, as `git pull && make restart` does."""
        pull(code, self.folder)
        self.up.process.send_signal(SIGUSR1)

    def begin_load(self, file: Path, *, rate: int, seconds: int) -> None:
        options = ["--devices=20", f"--rate={rate}", f"--seconds={seconds}", f"--json={file}"]
        self.fleet.start(manage("load", "load", *options, stop_order=StopOrder.FRONT))

    def end_load(self) -> None:
        self.fleet.running["load"].wait(timeout=120)
        self.fleet.kill("load")


@pytest.fixture
def installation(
    require_or_skip: Callable[[bool, str], None],
    postgres: EmbeddedPostgres,
    new_redis: Callable[[], str],
    guard: Guard,
    tmp_path: Path,
) -> Iterator[Installation]:
    release = last_release()
    require_or_skip(bool(release), CANNOT)
    folder, old, new = (tmp_path / name for name in ("installed", "old", "new"))
    unpack_release(release, old)
    copy_working_tree(new)
    make_up_a_migration(old, new)
    pull(old, folder)
    (tmp_path / "logs").mkdir()
    require_or_skip(prosody.is_installed(), "there is no Prosody: `make xmpp-interop` as root installs it")
    xmpp = peers.prosody(Fleet(tmp_path / "logs", {}, guard))
    fleet = Fleet(tmp_path / "logs", _environment(postgres, new_redis(), tmp_path) | peers.component_of(xmpp), guard)
    up = Up(tmp_path / "data", free_port(), fleet.folder / "up.log", environment=fleet.environment, folder=folder)
    try:
        _start_peers(fleet)
        up.shows("Ready. Console: ")
        network = network_of(fleet)
        service = Service(xmpp, fleet)
        service.add_app(APP)
        yield Installation(folder, old, new, fleet, up, network, service)
        network.close()
    finally:
        if up.process.poll() is None:
            up.ends(SIGKILL)
        fleet.kill(*fleet.running)
        xmpp.stop()


def _environment(postgres: EmbeddedPostgres, redis_url: str, folder: Path) -> dict[str, str]:
    """Return the settings, with an empty database."""
    database = f"upgrade_{uuid4().hex[:8]}"
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}")
    return {
        "DATABASE_URL": postgres.url(database),
        "REDIS_URL": redis_url,
        "WAKU_NODES": f"http://127.0.0.1:{free_port()}",
        "GORUSH_URL": f"http://127.0.0.1:{free_port()}",
        "METRICS_DIR": str(folder / "metrics"),
        "METRICS_PORT": str(free_port()),
        **{name: os.environ[name] for name in SECRETS},
        **UNLIMITED,
    }


def _start_peers(fleet: Fleet) -> None:
    node_url, gorush_url = fleet.environment["WAKU_NODES"], fleet.environment["GORUSH_URL"]
    fleet.start(processes.node(processes.port_of(node_url)), processes.gorush(processes.port_of(gorush_url)))
    processes.wait_for_http(f"{node_url}/health", f"{gorush_url}/healthz")
