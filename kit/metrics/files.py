"""Metric files of the processes of this machine, one set per process id.

The counts of a process outlive it: its counters and histograms are added to those of other ended processes. So restarts
lose no counts, and leave no files behind. Its gauges are removed. Each collection checks which processes are alive,
because a killed process cannot record its own end.
"""

import fcntl
import json
import os
import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
from prometheus_client import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from kit.metrics import exemplars

NAME = re.compile(r"(?P<kind>counter|histogram|gauge_[a-z]+|exemplars)_(?P<pid>\d+)\.(db|json)")
FOLDED = ("counter", "histogram")
DEAD = "dead"
# What prometheus_client raises for a file that a crash of the machine or a full disk has cut off or emptied in parts.
BROKEN = (RuntimeError, struct.error, ValueError, TypeError)
log = structlog.get_logger(__name__)


class Counted(Collector):
    """The metrics of all processes that share ``folder``, including ended ones."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._skipped: set[Path] = set()  # broken files of living processes, which are named once

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> list[Metric]:
        if not self._folder.is_dir():  # the configuration is wrong, and its checks say so
            return []
        with _alone(self._folder):
            _fold_ended(self._folder)
            # A new file is empty for a moment, until its process has set its size.
            files = [file for file in self._folder.glob("*.db") if file.stat().st_size]
            try:
                merged = _merge(files)
            except BROKEN:
                merged = _merge([file for file in files if self._is_whole(file)])
            _leave_out_sums_below_zero(merged)
            exemplars.show(merged, exemplars.read(self._folder))
            return merged

    def _is_whole(self, file: Path) -> bool:
        """Return whether a file can be read. Name another one, and remove it unless its process still counts in it."""
        try:
            _read(file)
        except BROKEN:
            found = NAME.fullmatch(file.name)
            if found and _is_alive(int(found["pid"])):
                if file not in self._skipped:
                    log.warning("metric_file_skipped", file=file.name)
                self._skipped.add(file)
            else:
                _remove(file)
            return False
        return True


def _merge(files: Iterable[Path]) -> list[Metric]:
    return list(MultiProcessCollector.merge([str(file) for file in files], accumulate=True))


def _leave_out_sums_below_zero(metrics: Iterable[Metric]) -> None:
    """Leave out the sum and the count of histograms that have buckets below zero.

    OpenMetrics forbids both, and a strict reader would reject the whole page. The last bucket has the count too.
    """
    for metric in metrics:
        if any(sample.labels.get("le", "").startswith("-") for sample in metric.samples):
            metric.samples = [sample for sample in metric.samples if "le" in sample.labels]


def clear(folder: Path) -> None:
    """Remove all counts. Call it only while no process counts in this folder."""
    for file in (*folder.glob("*.db"), *folder.glob("exemplars_*")):
        file.unlink(missing_ok=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other readers out, because between folding a file and removing it, its counts exist twice."""
    with (folder / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Closing the file is not enough, because a child that was forked meanwhile has it open too.
            fcntl.flock(file, fcntl.LOCK_UN)


def _fold_ended(folder: Path) -> None:
    files = [(file, found) for file in sorted(folder.iterdir()) if (found := NAME.fullmatch(file.name))]
    living = {pid for pid in {int(found["pid"]) for _, found in files} if _is_alive(pid)}
    for file, found in files:
        if int(found["pid"]) not in living:
            if found["kind"] in FOLDED and file.stat().st_size:
                _fold(file, folder / f"{found['kind']}_{DEAD}.db")
            file.unlink(missing_ok=True)


def _fold(file: Path, into: Path) -> None:
    """Add the counts of one file to those of ended processes. A broken file of either kind is removed instead."""
    try:
        counts = _read(file)
    except BROKEN:
        _remove(file)
        return
    try:
        total = MmapedDict(str(into))
    except BROKEN:
        _remove(into)
        total = MmapedDict(str(into))
    try:
        for key, value in counts:
            total.write_value(key, total.read_value(key)[0] + value, 0.0)
    finally:
        total.close()


def _read(file: Path) -> list[tuple[str, float]]:
    """Return the values of a whole file, by their keys. Raises one of `BROKEN`."""
    counts = [(key, value) for key, value, _, _ in MmapedDict.read_all_values_from_file(str(file))]
    for key, _ in counts:
        _metric, _name, _labels, _help = json.loads(key)
    return counts


def _remove(file: Path) -> None:
    log.warning("metric_file_removed", file=file.name, reason="it is broken, and its counts are lost")
    file.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another account has this id
        return True
    return True
