"""The files that the processes of this machine count in, one set per process id.

What a process counted stays counted after its end: its counters and histograms are added to those of earlier processes
that have ended, so that restarts neither take counts away nor pile up files. Its gauges go with it. The kernel is asked
which processes live when metrics are collected, because a killed process cannot note its own end.
"""

import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from kit.metrics import exemplars

NAME = re.compile(r"(?P<kind>counter|histogram|gauge_[a-z]+)_(?P<pid>\d+)\.db")
DEAD = "dead"


class Counted(Collector):
    """The metrics that all processes that share ``folder`` have counted, including those that have ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> list[Metric]:
        if not self._folder.is_dir():  # the configuration is wrong, and its checks say so
            return []
        with _alone(self._folder):
            _bury_the_dead(self._folder)
            # A process that starts makes its file first, and gives it a size a moment later.
            files = [str(file) for file in self._folder.glob("*.db") if file.stat().st_size]
            merged = list(MultiProcessCollector.merge(files, accumulate=True))
            _leave_out_sums_below_zero(merged)
            exemplars.show(merged, exemplars.read(self._folder))
            return merged


def _leave_out_sums_below_zero(metrics: Iterable[Metric]) -> None:
    """Leave out sum and count of histograms that have buckets below zero.

    OpenMetrics forbids both, and who reads it strictly would take nothing of the page. The last bucket is the count.
    """
    for metric in metrics:
        if any(sample.labels.get("le", "").startswith("-") for sample in metric.samples):
            metric.samples = [sample for sample in metric.samples if "le" in sample.labels]


def clear(folder: Path) -> None:
    """Remove all counts. It may be called only while no process counts there."""
    for file in (*folder.glob("*.db"), *folder.glob("exemplars_*")):
        file.unlink(missing_ok=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other readers out: between folding a file and removing it, its counts are there twice."""
    with (folder / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Closing is not enough, because a child forked meanwhile holds the file open too.
            fcntl.flock(file, fcntl.LOCK_UN)


def _bury_the_dead(folder: Path) -> None:
    files = [(file, found) for file in sorted(folder.iterdir()) if (found := NAME.fullmatch(file.name))]
    living = {pid for pid in {int(found["pid"]) for _, found in files} if _is_alive(pid)}
    for file, found in files:
        if int(found["pid"]) not in living:
            if not found["kind"].startswith("gauge") and file.stat().st_size:
                _fold(file, folder / f"{found['kind']}_{DEAD}.db")
            file.unlink()
    for file in folder.iterdir():
        if (found := exemplars.NAME.fullmatch(file.name)) and not _is_alive(int(found["pid"])):
            file.unlink()


def _fold(file: Path, into: Path) -> None:
    total = MmapedDict(str(into))
    try:
        for key, value, _, _ in MmapedDict.read_all_values_from_file(str(file)):
            total.write_value(key, total.read_value(key)[0] + value, 0.0)
    finally:
        total.close()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another account: not ours, but the number is taken
        return True
    return True
