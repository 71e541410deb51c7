"""Benchmark of the life of `manage.py up`: its first and second start, its idle time, and a restart under load.

It is exactly what users start, in a fresh DATA_DIR. The restarted server has its node and gorush elsewhere: otherwise
no client could send meanwhile, and the latest reply would show nothing. The server is stopped and started once, and its
processes are replaced once. Seconds are wall-clock times, which are meaningful only on an idle machine. Run alone with
``python -m bench life``.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM, SIGUSR1
from statistics import median
from typing import Any

import psutil
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.running import servers
from embedded.servers.ports import free_port

TIMEOUT_SECONDS = 180.0
SETTLING_SECONDS = 20.0  # until the work after a start is done
IDLE_SECONDS = 30.0
RATE, LOAD_SECONDS = 5, 40
SETUP = """
import time
import pushserver.worker
import django
django.setup()
print(time.process_time())
"""
# Goals by the name of their figure. Figures without a goal are for comparison.
GOALS: Mapping[str, float] = {
    "first_word_seconds": 2,
    "second_start_seconds": 12,
    "restart_seconds": 12,
    "latest_reply_seconds": 3,
    "setup_cpu_seconds": 1,
    "idle_percent": 1,
    "idle_pss_mb": 400,
}
# Development servers in place of ones that are not ours.
NOT_COUNTED = ("embedded.node", "embedded.gorush")


@dataclass(frozen=True, slots=True)
class Share:
    """The resources that one process uses while nothing happens."""

    name: str
    cpu_percent: float
    pss_mb: float

    @property
    def is_counted(self) -> bool:
        return not any(part in self.name for part in NOT_COUNTED)


class Up:
    """A DATA_DIR on which `manage.py up` runs as often as needed."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._log = folder / "up.log"
        self._environment = {**os.environ, "DATA_DIR": str(folder / "data"), "PORT": str(free_port()), **environment}

    @contextmanager
    def running(self) -> Iterator["Life"]:
        """Start it, wait until it is ready, and stop it in the end."""
        with self._log.open("w", encoding="utf-8") as log:
            life = Life(self._log, psutil.Popen([*MANAGE, "up"], env=self._environment, stdout=log, stderr=log))
        try:
            life.wait_for("Ready.")
            yield life
        finally:
            life.stop()

    def manage(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start another command on the same DATA_DIR."""
        return subprocess.Popen([*MANAGE, *arguments], env=self._environment, stdout=subprocess.DEVNULL)


MANAGE = (sys.executable, "manage.py")


class Life:
    """One run of `manage.py up`, from its start to its end."""

    def __init__(self, log: Path, process: psutil.Popen) -> None:
        self._log = log
        self._started_at = time.monotonic()
        self.process = process
        self.first_word_seconds = self._seconds_until("Starting")
        self.start_seconds = 0.0

    def wait_for(self, word: str) -> None:
        """Wait for a word in the log, and note the time."""
        self.start_seconds = self._seconds_until(word)

    def _seconds_until(self, word: str) -> float:
        servers.wait_until(lambda: word in self._log.read_text(encoding="utf-8"), TIMEOUT_SECONDS)
        return time.monotonic() - self._started_at

    def stop(self) -> None:
        """Stop it, and wait until it has ended."""
        with suppress(psutil.NoSuchProcess):
            self.process.send_signal(SIGTERM)
        self.process.wait(TIMEOUT_SECONDS)


def run() -> dict[str, object]:
    """Measure everything, print it, and return the figures."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        configured, further = stack.enter_context(servers.configured_database(folder))
        up = Up(folder, configured | {"WAKU_NODES": "", "GORUSH_URL": "", "REDIS_URL": ""})
        with up.running() as first:
            pass
        with up.running() as second:
            time.sleep(SETTLING_SECONDS)
            shares = list(_shares([second.process, *further]))
        elsewhere = configured | {
            "WAKU_NODES": stack.enter_context(servers.node()),
            "GORUSH_URL": stack.enter_context(servers.gorush()),
        }
        restart_seconds, stopped_load = _restart(Up(folder, elsewhere), folder / "load.json")
        replace_seconds, load = _replace(Up(folder, elsewhere), folder / "load.json")
    counted = [share for share in shares if share.is_counted]
    figures = {
        "first_word_seconds": second.first_word_seconds,
        "first_start_seconds": first.start_seconds,
        "second_start_seconds": second.start_seconds,
        "restart_seconds": restart_seconds,
        "latest_reply_of_restart_seconds": stopped_load["replies"]["latency_ms"]["max"] / 1000,
        "replace_seconds": replace_seconds,
        "latest_reply_seconds": load["replies"]["latency_ms"]["max"] / 1000,
        "replies_lost": load["replies"]["lost"] + stopped_load["replies"]["lost"],
        "setup_cpu_seconds": _setup_cpu_seconds(),
        "idle_percent": sum(share.cpu_percent for share in counted),
        "idle_pss_mb": sum(share.pss_mb for share in counted),
        "processes": len(counted),
    }
    _print(figures, shares)
    return {
        **{name: round(value, 3) for name, value in figures.items()},
        "by_process": [[share.name, round(share.cpu_percent, 2), round(share.pss_mb, 1)] for share in shares],
    }


def _shares(roots: Sequence[psutil.Process]) -> Iterator[Share]:
    family = [each for root in roots for each in (root, *root.children(recursive=True))]
    before = {process: sum(process.cpu_times()[:2]) for process in family}
    time.sleep(IDLE_SECONDS)
    for process, cpu_seconds in before.items():
        with suppress(psutil.NoSuchProcess):
            taken = sum(process.cpu_times()[:2]) - cpu_seconds
            pss_mb = process.memory_full_info().pss / 2**20
            line = " ".join(process.cmdline()).replace(f"{sys.prefix}/", "").strip()
            yield Share(line, 100 * taken / IDLE_SECONDS, pss_mb)


def _restart(up: Up, result: Path) -> tuple[float, dict[str, Any]]:
    """Stop the server in the middle of a small load and start it at once.

    Return the seconds until it was ready again, and the result of `manage.py load`.
    """
    with ExitStack() as stack:
        life = stack.enter_context(up.running())
        with _load(up, result):
            began_at = time.monotonic()
            life.stop()
            stack.enter_context(up.running())
            seconds = time.monotonic() - began_at
    return seconds, json.loads(result.read_text(encoding="utf-8"))


def _replace(up: Up, result: Path) -> tuple[float, dict[str, Any]]:
    """Replace the processes in the middle of a small load. Return the same as `_restart`."""
    with up.running() as life, _load(up, result):
        began_at = time.monotonic()
        life.process.send_signal(SIGUSR1)
        life.wait_for("Replaced.")
        seconds = time.monotonic() - began_at
    return seconds, json.loads(result.read_text(encoding="utf-8"))


@contextmanager
def _load(up: Up, result: Path) -> Iterator[None]:
    """Run the block a third of the way through a small load."""
    options = ("--devices=5", f"--rate={RATE}", f"--seconds={LOAD_SECONDS}", "--drain=60", f"--json={result}")
    load = up.manage("load", *options)
    time.sleep(LOAD_SECONDS / 3)
    yield
    load.wait(TIMEOUT_SECONDS)


def _setup_cpu_seconds() -> float:
    command = [sys.executable, "-c", SETUP]
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "pushserver.settings"}
    return median(
        float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    )


def _print(figures: Mapping[str, float], shares: list[Share]) -> None:
    table = Table(title=f"The life of `manage.py up` on {os.cpu_count()} cores")
    for column in ("figure", "value", "goal"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for name, value in figures.items():
        goal = f"≤ {GOALS[name]:g}" if name in GOALS else ""
        colour = "red" if name in GOALS and value > GOALS[name] else ""
        table.add_row(name.replace("_", " "), f"{value:,.2f}", goal, style=colour)
    idle = Table(title=f"Idle, {IDLE_SECONDS:g} s")
    for column in ("process", "% of a core", "PSS, MB"):
        idle.add_column(column, justify="left" if column == "process" else "right", no_wrap=True)
    for share in shares:
        idle.add_row(escape(share.name[:48]), f"{share.cpu_percent:.2f}", f"{share.pss_mb:.1f}")
    Console().print(table, idle)
