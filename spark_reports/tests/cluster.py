"""Servers of Spark on this machine: a stand-alone cluster with two workers of one core each, and quick settings."""

import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from embedded.servers.ports import free_port
from spark_reports.running.spark import environment, spark_home
from tests.rig.server import wait_until

DEPLOY = "org.apache.spark.deploy"
# Compile quickly and not well, collect garbage in one thread, and do not verify Spark's JARs. A transform then takes
# a seventh of the time.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
CONF = f"""
spark.driver.extraJavaOptions {QUICK_JAVA}
spark.executor.extraJavaOptions {QUICK_JAVA}
spark.executor.memory 512m
spark.sql.codegen.wholeStage false
spark.sql.codegen.factoryMode NO_CODEGEN
spark.sql.shuffle.partitions 4
"""


def write_quick_conf(folder: Path) -> Path:
    """Write a configuration of spark-submit for tiny days, and return the folder: the value of SPARK_CONF_DIR."""
    folder.mkdir()
    (folder / "spark-defaults.conf").write_text(CONF)
    return folder


@contextmanager
def running(
    command: list[str], log: Path, is_ready: Callable[[], bool], environ: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Run a server until the block ends. The block begins once the server is ready."""
    log.parent.mkdir(exist_ok=True)
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environ) as process:
        try:
            wait_until(is_ready, seconds=120, what=f"{log.name} says that it is ready")
            yield
        finally:
            process.terminate()
            process.wait(30)


@dataclass(frozen=True)
class Cluster:
    url: str
    folder: Path

    @classmethod
    @contextmanager
    def started(cls, folder: Path) -> Iterator[Self]:
        port = free_port()
        url = f"spark://127.0.0.1:{port}"
        with ExitStack() as stack:
            master = _daemon("master.Master", "--port", str(port), log=folder / "master.log", says="have been elected")
            stack.enter_context(master)
            for name in ("one", "two"):
                size = ["--cores", "1", "--memory", "700m", "--work-dir", str(folder / name)]
                log = folder / f"{name}.log"
                stack.enter_context(_daemon("worker.Worker", *size, url, log=log, says="Successfully registered"))
            yield cls(url, folder)

    def workers_used(self) -> int:
        """Return how many workers ran an executor."""
        return sum(any((self.folder / name).glob("app-*/*")) for name in ("one", "two"))


def _daemon(name: str, *arguments: str, log: Path, says: str) -> AbstractContextManager[None]:
    # spark-class replaces itself with Java, so its process id is that of the daemon.
    command = [str(spark_home() / "bin" / "spark-class"), f"{DEPLOY}.{name}"]
    command += ["--host", "127.0.0.1", "--webui-port", "0", *arguments]
    environ = environment("local") | {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA}
    return running(command, log, lambda: says in log.read_text(encoding="utf-8", errors="replace"), environ)
