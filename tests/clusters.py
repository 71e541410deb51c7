"""PostgreSQL servers of single tests, for what the one that all tests share must not suffer."""

import subprocess
from dataclasses import dataclass
from signal import SIGQUIT

from pushserver.embedded.postgres import EmbeddedPostgres
from pushserver.supervisor.guard import Guard
from tests.flows.fleet import wait_until

# What a killed process has written, the system still has; what it has only promised (synchronous_commit) would be lost.
UNSYNCED = {"fsync": "off", "shared_buffers": "64MB"}


@dataclass(slots=True)
class Cluster:
    """A cluster, and the process that serves it."""

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
        """All its processes at once and nothing written any more: the next start recovers from the log."""
        assert self.process is not None
        self.process.send_signal(SIGQUIT)
        self.process.wait()
        self.guard.forget(self.process.pid)

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None
