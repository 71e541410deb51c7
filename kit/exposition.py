"""Metrics as they are scraped, from the files of the processes of this machine: one set of files per process id.

Every process counts in files of its own (prometheus_client's multiprocess mode), and the one that answers a scrape adds
them up. The counts of a process outlive it: its counters and histograms are added to those of other ended processes. So
restarts lose no counts, and leave no files behind. Its gauges are removed. Each collection checks which processes are
alive, because a killed process cannot record its own end.
"""

import fcntl
import hmac
import json
import os
import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from errno import EADDRINUSE
from pathlib import Path
from socket import SOCK_STREAM, getaddrinfo
from threading import Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import structlog
from django.conf import settings
from prometheus_client import CollectorRegistry, Metric, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

NAME = re.compile(r"(?P<kind>counter|histogram|gauge_[a-z]+)_(?P<pid>\d+)\.db")
FOLDED = ("counter", "histogram")
DEAD = "dead"
# What prometheus_client raises for a file that a crash of the machine or a full disk has cut off or emptied in parts.
BROKEN = (RuntimeError, struct.error, ValueError, TypeError)
RETRY_SECONDS = 0.5
# Longer than the shutdown of a process that this one replaces.
LOG_AFTER_SECONDS = 30.0
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
            self._fold_ended()
            # A new file is empty for a moment, until its process has set its size.
            files = [file for file in self._folder.glob("*.db") if file.stat().st_size]
            try:
                merged = _merge(files)
            except BROKEN:
                merged = _merge([file for file in files if self._read(file) is not None])
            _leave_out_sums_below_zero(merged)
            return merged

    def _fold_ended(self) -> None:
        files = [(file, found) for file in sorted(self._folder.iterdir()) if (found := NAME.fullmatch(file.name))]
        living = {pid for pid in {int(found["pid"]) for _, found in files} if _is_alive(pid)}
        for file, found in files:
            if int(found["pid"]) not in living:
                if found["kind"] in FOLDED and file.stat().st_size:
                    self._fold(file, self._folder / f"{found['kind']}_{DEAD}.db")
                file.unlink(missing_ok=True)

    def _fold(self, file: Path, into: Path) -> None:
        """Add the counts of one file to those of ended processes. A broken file of either kind is removed instead."""
        if into.exists():
            self._read(into)
        total = MmapedDict(str(into))
        try:
            for key, value in self._read(file) or []:
                total.write_value(key, total.read_value(key)[0] + value, 0.0)
        finally:
            total.close()

    def _read(self, file: Path) -> list[tuple[str, float]] | None:
        """Return the values of a file by their keys, or None for a broken one.

        A broken file is named, and removed unless its process still counts in it.
        """
        try:
            return [(key, value) for key, (_, _, value) in read_values(file).items()]
        except BROKEN:
            found = NAME.fullmatch(file.name)
            if not (found and _is_alive(int(found["pid"]))):
                log.warning("metric_file_removed", file=file.name, reason="it is broken, and its counts are lost")
                file.unlink(missing_ok=True)
            elif file not in self._skipped:
                log.warning("metric_file_skipped", file=file.name)
                self._skipped.add(file)
            return None


def read_values(file: Path) -> dict[str, tuple[str, dict[str, str], float]]:
    """Return the name, the labels and the value of each sample in a file, by their keys. Raises one of `BROKEN`."""
    found = {}
    for key, value, _, _ in MmapedDict.read_all_values_from_file(str(file)):
        _metric, name, labels, _help = json.loads(key)
        found[key] = name, labels, value
    return found


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
    for file in folder.glob("*.db"):
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


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another account has this id
        return True
    return True


def is_authentic(presented: str) -> bool:
    """Return whether a header `Authorization` has the METRICS_TOKEN."""
    return hmac.compare_digest(presented.encode(errors="replace"), f"Bearer {settings.METRICS_TOKEN}".encode())


def serve() -> None:
    """Serve the metrics of this process and its children at METRICS_HOST and METRICS_PORT, or nowhere if the port is 0.

    Whoever shares a network with the process reaches the port, so it asks for the METRICS_TOKEN where there is one. It
    is for processes without a web server on their METRICS_DIR, such as those in containers of their own. A port that
    cannot be opened does not stop the process. A thread waits for the port: the process that this one replaces uses it
    until it ends, and it ends only when this one has started.
    """
    if settings.METRICS_PORT:
        Thread(target=_open, name="metrics-port", daemon=True).start()


def _open() -> None:
    registry = CollectorRegistry()
    registry.register(Counted(settings.METRICS_DIR))
    log_at = monotonic() + LOG_AFTER_SECONDS
    while True:
        try:
            server = _listen(_guarded(make_wsgi_app(registry)))
        except OSError as error:
            is_taken = error.errno == EADDRINUSE
            if not is_taken or monotonic() >= log_at:
                log.error("metrics_port_not_opened", port=settings.METRICS_PORT, error=error.strerror)  # noqa: TRY400
                log_at = float("inf")
            if not is_taken:
                return
            sleep(RETRY_SECONDS)
        else:
            server.serve_forever()
            return


class _SilentHandler(WSGIRequestHandler):
    def log_message(self, *_arguments: Any) -> None:
        """Log nothing: a scrape is no news."""


def _listen(application: "WSGIApplication") -> WSGIServer:
    host, port = settings.METRICS_HOST, settings.METRICS_PORT
    [(family, *_), *_] = getaddrinfo(host, port, type=SOCK_STREAM)
    server = type("Server", (ThreadingWSGIServer,), {"address_family": family})
    return make_server(host, port, application, server, _SilentHandler)


def _guarded(application: "WSGIApplication") -> "WSGIApplication":
    def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        if settings.METRICS_TOKEN and not is_authentic(environ.get("HTTP_AUTHORIZATION", "")):
            start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer")])
            return []
        return application(environ, start_response)

    return answer
