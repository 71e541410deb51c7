"""Stand-alone Spark cluster on this machine: one master, and two workers with one core each."""

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from embedded.servers.ports import free_port
from spark_reports.running.spark import environment, spark_home
from spark_reports.tests.quick import QUICK_JAVA

DEPLOY = "org.apache.spark.deploy"
START_SECONDS = 120


@dataclass(frozen=True)
class Cluster:
    url: str
    folder: Path

    @classmethod
    @contextmanager
    def started(cls, folder: Path) -> Iterator[Self]:
        port = free_port()
        url = f"spark://127.0.0.1:{port}"
        ours = ["--host", "127.0.0.1", "--webui-port", "0"]
        with ExitStack() as stack:
            log = folder / "master.log"
            stack.enter_context(_daemon([f"{DEPLOY}.master.Master", *ours, "--port", str(port)], log))
            _wait_for(log, "I have been elected leader")
            for name in ("one", "two"):
                size = ["--cores", "1", "--memory", "700m", "--work-dir", str(folder / name)]
                stack.enter_context(_daemon([f"{DEPLOY}.worker.Worker", *ours, *size, url], folder / f"{name}.log"))
            for name in ("one", "two"):
                _wait_for(folder / f"{name}.log", "Successfully registered with master")
            yield cls(url, folder)

    def workers_used(self) -> int:
        """Return how many workers ran an executor."""
        return sum(any((self.folder / name).glob("app-*/*")) for name in ("one", "two"))


@contextmanager
def _daemon(arguments: Sequence[str], log: Path) -> Iterator[None]:
    log.parent.mkdir(exist_ok=True)
    # spark-class replaces itself with Java, so its process id is that of the daemon.
    command = [str(spark_home() / "bin" / "spark-class"), *arguments]
    environ = environment("local") | {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA}
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environ) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def _wait_for(log: Path, words: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while words not in log.read_text(encoding="utf-8", errors="replace"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{log.name}: {log.read_text(encoding='utf-8', errors='replace')[-2000:]}")
        time.sleep(0.2)
