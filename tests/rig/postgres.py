"""PostgreSQL servers of single tests, for failures that the shared server of all tests must not suffer."""

import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGQUIT

import psycopg

from bench.running.servers import copy_of
from embedded.servers import installed
from embedded.servers.ports import free_port
from embedded.servers.postgres import DATABASE_NAME, EmbeddedPostgres
from embedded.supervisor.guard import Guard
from tests.rig.server import wait_until

# Without fsync a killed PostgreSQL loses nothing, as the system has its writes. Without synchronous_commit it would.
UNSYNCED = {"fsync": "off", "shared_buffers": "64MB"}


@dataclass(slots=True)
class Cluster:
    """A PostgreSQL cluster and the process that serves it."""

    server: EmbeddedPostgres
    guard: Guard
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        spec = self.server.spec()
        spec.prepare()
        with self.server.data_dir.with_name("postgres.log").open("ab") as log:
            self.process = subprocess.Popen(spec.command, stdout=log, stderr=log, **spec.arguments())
        self.guard.watch(self.process.pid, spec.stop_signal)
        wait_until(self.server.is_ready, what="the database answers")

    def kill(self) -> None:
        """Kill all processes of the cluster at once (SIGQUIT). The next start recovers from the WAL."""
        assert self.process is not None
        self.process.send_signal(SIGQUIT)
        self.process.wait()
        self.guard.forget(self.process.pid)

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def run(self, *statements: str) -> list[tuple[object, ...]]:
        """Run each statement in a transaction of its own, also on a read-only cluster. Return the rows of the last."""
        rows: list[tuple[object, ...]] = []
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            for statement in ("SET default_transaction_read_only = off", *statements):
                cursor = connection.execute(statement)
                rows = cursor.fetchall() if cursor.description else []
        return rows

    def set(self, **settings: str) -> None:
        """Change settings of the cluster, for open sessions and for new ones."""
        alter = [f"ALTER SYSTEM SET {name} = '{value}'" for name, value in settings.items()]
        self.run(*alter, "SELECT pg_reload_conf()")


@dataclass(slots=True)
class Replicas:
    """A primary and a standby that streams from it, each on a loopback port, for tests of fail-over.

    With ``is_synchronous`` the primary confirms a commit only after the standby has it, once a standby is connected.
    """

    primary: Cluster
    standby: Cluster
    is_synchronous: bool

    @property
    def url(self) -> str:
        """Return DATABASE_URL as an operator sets it: every server, in any order."""
        hosts = ",".join(sorted(f"127.0.0.1:{each.server.settings['port']}" for each in (self.primary, self.standby)))
        return f"postgresql://postgres@{hosts}/{DATABASE_NAME}"

    def start(self) -> None:
        self.primary.start()
        self.follow()

    def stop(self) -> None:
        for each in (self.primary, self.standby):
            if each.is_running():
                each.kill()

    def follow(self) -> None:
        """Build the standby anew from the primary and start streaming."""
        copy_of(self.primary.server, self.standby.server.data_dir)
        self.standby.start()
        if self.is_synchronous:
            self.primary.set(synchronous_standby_names="*")
        wait_until(self._streams, what="the standby streams")

    def cut_off(self) -> None:
        """Stop replication: the primary goes on confirming commits that the standby does not get."""
        self.standby.set(primary_conninfo="")
        wait_until(lambda: not self._streams(), what="the standby does not stream")

    def fail_over(self, *, noticed_after_seconds: float) -> None:
        """Kill the primary, wait, and promote the standby, which then has no standby of its own."""
        self.primary.kill()
        time.sleep(noticed_after_seconds)
        self.standby.set(synchronous_standby_names="")
        self.standby.run("SELECT pg_promote()")
        self.primary, self.standby = self.standby, self.primary

    def _streams(self) -> bool:
        wanted = "sync" if self.is_synchronous else "async"
        return self.primary.run("SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'") == [(wanted,)]


def replicas(folder: Path, guard: Guard, *, is_synchronous: bool) -> Replicas:
    """Return a primary and a standby that are not started yet."""
    primary, standby = (
        Cluster(installed.postgres(folder / name, settings), guard)
        for name in ("one", "other")
        for settings in [UNSYNCED | {"listen_addresses": "127.0.0.1", "port": str(free_port()), "hot_standby": "on"}]
    )
    return Replicas(primary, standby, is_synchronous)


def run_program(cluster: EmbeddedPostgres, program: str, *arguments: str) -> None:
    """Run a program of PostgreSQL, or of the system, as the account of the cluster."""
    known = cluster.programs / program
    command = [str(known) if known.exists() else program, *arguments]
    identity = cluster.spec().identity()
    ended = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, **identity)
    assert ended.returncode == 0, ended.stderr


class SilentProxy:
    """Proxy on 127.0.0.1 that forwards bytes to the Unix socket ``target`` and back while ``speaks`` is set.

    It falls silent by itself at the first bytes that have ``mute_at``.
    """

    def __init__(self, target: Path, mute_at: bytes = b"") -> None:
        self._target, self.mute_at = target, mute_at
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listener]
        self.port: int = self._listener.getsockname()[1]
        self.speaks = threading.Event()
        self.speaks.set()
        self.swallowed = threading.Event()  # set once bytes came that get no answer
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._target))
                self._open += [client, server]
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if self.mute_at and self.mute_at in data:
                    self.speaks.clear()
                if not self.speaks.is_set():
                    self.swallowed.set()
                    return  # both ends stay open
                sink.sendall(data)
            if self.speaks.is_set():
                sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@contextmanager
def silent_proxy(target: Path) -> Iterator[SilentProxy]:
    proxy = SilentProxy(target)
    yield proxy
    proxy.close()
