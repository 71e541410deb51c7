"""Benchmark of the life of `manage.py up`: its first and second start, its idle time, and a restart under load.

It is exactly what users start, in a fresh DATA_DIR. The restarted server has its node and gorush elsewhere: otherwise
no client could send meanwhile, and the latest reply would show nothing. The server is stopped and started once, and its
processes are replaced once. Seconds are wall-clock times, which are meaningful only on an idle machine.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from signal import SIGUSR1
from statistics import median
from typing import Any, NamedTuple

import psutil
import psycopg

from bench.running import servers
from bench.running.tables import show, show_figures
from embedded.servers.ports import free_port

MANAGE = (sys.executable, "manage.py")
TIMEOUT_SECONDS = 180.0
SETTLING_SECONDS = 60.0  # until the work after a start is done
IDLE_SECONDS = 300.0  # the period of the slowest tasks that the server needs
TABLES = """
    SELECT count(*) FILTER (WHERE relkind <> 'i' AND NOT relispartition), count(*) FILTER (WHERE relkind = 'i')
    FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'i')
"""
RATE, LOAD_SECONDS = 5, 40
SETUP = "import time, pushserver.worker, django; django.setup(); print(time.process_time())"
# Goals by the name of their figure. Figures without a goal are for comparison.
GOALS = {
    "first_word_seconds": "≤ 2",
    "second_start_seconds": "≤ 12",
    "restart_seconds": "≤ 12",
    "latest_reply_seconds": "≤ 3",
    "setup_cpu_seconds": "≤ 1",
    "idle_percent": "≤ 1",
    "idle_pss_mb": "≤ 400",
    "tables": "≤ 65",
    "indexes": "≤ 250",
}
NOT_COUNTED = ("embedded.node", "embedded.gorush")  # in place of ones that are not ours


class Share(NamedTuple):
    """The resources that one process uses while nothing happens."""

    name: str
    cpu_percent: float
    pss_mb: float


class Life:
    """One run of `manage.py up`, from its start to its end."""

    def __init__(self, log: Path, process: "subprocess.Popen[bytes]") -> None:
        self._log = log
        self._started_at = time.monotonic()
        self.process = process
        self.first_word_seconds = self.seconds_until("Starting")
        self.start_seconds = self.seconds_until("Ready.")

    def seconds_until(self, word: str) -> float:
        """Wait for a word in the log, and return the seconds since the start."""
        servers.wait_until(lambda: word in self._log.read_text(encoding="utf-8"), TIMEOUT_SECONDS)
        return time.monotonic() - self._started_at


class Up(NamedTuple):
    """A folder in which `manage.py up` runs as often as needed."""

    folder: Path
    environment: Mapping[str, str]

    @contextmanager
    def running(self) -> Iterator[Life]:
        """Start it, wait until it is ready, and stop it in the end."""
        log = self.folder / "up.log"
        with log.open("wb") as out, servers.process([*MANAGE, "up"], env=self.environment, stdout=out) as process:
            yield Life(log, process)

    def replies(self, during: Callable[[], None]) -> tuple[float, dict[str, Any]]:
        """Do something a third of the way through a small load. Return its seconds, and the figures of the replies."""
        file = self.folder / "load.json"
        options = ("--devices=5", f"--rate={RATE}", f"--seconds={LOAD_SECONDS}", "--drain=60", f"--json={file}")
        with servers.process([*MANAGE, "load", *options], env=self.environment) as load:
            time.sleep(LOAD_SECONDS / 3)
            began_at = time.monotonic()
            during()
            seconds = time.monotonic() - began_at
            load.wait(TIMEOUT_SECONDS)
        return seconds, json.loads(file.read_text(encoding="utf-8"))["replies"]


def run() -> dict[str, object]:
    """Measure everything, print it, and return the figures."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        configured, further = stack.enter_context(servers.configured_database(folder))
        own = {"DATA_DIR": str(folder / "data"), "PORT": str(free_port()), **configured}
        up = Up(folder, os.environ | own | {"WAKU_NODES": "", "GORUSH_URL": "", "REDIS_URL": ""})
        with up.running() as first:
            tables, indexes = _tables(up)
        with up.running() as second:
            time.sleep(SETTLING_SECONDS)
            shares = list(_shares([psutil.Process(second.process.pid), *further]))
        urls = {"WAKU_NODES": stack.enter_context(servers.node()), "GORUSH_URL": stack.enter_context(servers.gorush())}
        elsewhere = Up(folder, os.environ | own | urls)
        with elsewhere.running() as third, ExitStack() as again:
            restart_seconds, restarted = elsewhere.replies(lambda: _restart(elsewhere, third, again))
        with elsewhere.running() as fourth:
            replace_seconds, replaced = elsewhere.replies(lambda: _replace(fourth))
    counted = [share for share in shares if not any(part in share.name for part in NOT_COUNTED)]
    figures = {
        "first_word_seconds": second.first_word_seconds,
        "first_start_seconds": first.start_seconds,
        "second_start_seconds": second.start_seconds,
        "restart_seconds": restart_seconds,
        "latest_reply_of_restart_seconds": restarted["latency_ms"]["max"] / 1000,
        "replace_seconds": replace_seconds,
        "latest_reply_seconds": replaced["latency_ms"]["max"] / 1000,
        "replies_lost": replaced["lost"] + restarted["lost"],
        "setup_cpu_seconds": _setup_cpu_seconds(),
        "idle_percent": sum(share.cpu_percent for share in counted),
        "idle_pss_mb": sum(share.pss_mb for share in counted),
        "processes": len(counted),
        "tables": tables,
        "indexes": indexes,
    }
    show_figures(f"The life of `manage.py up` on {os.cpu_count()} cores", figures, GOALS)
    rows = {f"{place} {share.name[:48]}": share[1:] for place, share in enumerate(shares, start=1)}
    show(f"Idle, {IDLE_SECONDS:g} s", ("process", "% of a core", "PSS, MB"), rows)
    return {
        **{name: round(value, 3) for name, value in figures.items()},
        "by_process": [[share.name, round(share.cpu_percent, 2), round(share.pss_mb, 1)] for share in shares],
    }


def _tables(up: Up) -> tuple[int, int]:
    """Return the number of tables that are no partitions, and of indexes with those of partitions."""
    embedded = json.loads((up.folder / "data" / "embedded.json").read_text(encoding="utf-8"))
    with psycopg.connect(up.environment["DATABASE_URL"] or embedded["DATABASE_URL"]) as database:
        [(tables, indexes)] = database.execute(TABLES).fetchall()
    return tables, indexes


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


def _restart(up: Up, life: Life, stack: ExitStack) -> None:
    life.process.terminate()
    life.process.wait(TIMEOUT_SECONDS)
    stack.enter_context(up.running())


def _replace(life: Life) -> None:
    life.process.send_signal(SIGUSR1)
    life.seconds_until("Replaced.")


def _setup_cpu_seconds() -> float:
    command = [sys.executable, "-c", SETUP]
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "pushserver.settings"}
    return median(float(subprocess.check_output(command, env=environment, text=True)) for _ in range(3))
