"""Tests of metrics as they are scraped: counts of several processes, and the port."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, values
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from kit import exposition
from kit.exposition import Counted, clear
from kit.telemetry import BatchHistogram, observe
from tests.rig.logs import capture_logs

PROGRAM = """
import sys
from prometheus_client import Counter, Gauge, Histogram

counter = Counter("jobs", "A test.", ["kind"])
gauge = Gauge("held", "A test.", multiprocess_mode="livesum")
histogram = Histogram("took_seconds", "A test.", buckets=(1, 2))
for line in sys.stdin:
    counter.labels("a").inc(int(line))
    gauge.set(int(line))
    histogram.observe(int(line))
    print("counted", flush=True)
"""


class Process:
    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def count(self, number: int) -> None:
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "counted\n"

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[list[Process]]:
    running = [Process(tmp_path), Process(tmp_path)]
    yield running
    for process in running:
        process.kill()


def _reported(folder: Path) -> dict[str, float]:
    return {
        "".join([sample.name, *sample.labels.values()]): sample.value
        for family in Counted(folder).collect()
        for sample in family.samples
    }


def test_the_test_suite_counts_in_files_like_the_server(settings):
    assert values.ValueClass._multiprocess
    assert (settings.METRICS_DIR / f"counter_{os.getpid()}.db").exists()


def test_counts_of_all_processes_are_added_up_and_a_killed_one_keeps_its_counts_but_not_its_gauges(tmp_path, processes):
    for process, number in zip(processes, (1, 2), strict=True):
        process.count(number)
    reported = _reported(tmp_path)
    assert (reported["jobs_totala"], reported["held"], reported["took_seconds_sum"]) == (3, 3, 3)
    assert (reported["took_seconds_bucket1.0"], reported["took_seconds_count"]) == (1, 2)

    processes[0].kill()
    for _ in range(3):
        reported = _reported(tmp_path)
        assert (reported["jobs_totala"], reported["held"], reported["took_seconds_count"]) == (3, 2, 2)
    processes[1].count(10)
    assert _reported(tmp_path)["jobs_totala"] == 13


def test_files_of_ended_processes_are_removed_and_clear_removes_all_counts(tmp_path, processes):
    for process in processes:
        process.count(1)
        process.kill()

    assert _reported(tmp_path)["jobs_totala"] == 2
    assert sorted(file.name for file in tmp_path.iterdir()) == ["counter_dead.db", "histogram_dead.db", "lock"]
    clear(tmp_path)
    assert _reported(tmp_path) == _reported(tmp_path / "missing") == {}


@pytest.mark.parametrize("is_alive", [True, False])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: b"",
        lambda content: content[:60],
        lambda content: content.rstrip(b"\0")[:-9],
        lambda content: content[:4],
        lambda _: bytes(64 * 1024),
        lambda content: content[:8] + bytes(len(content) - 8),
        lambda content: content.replace(b"jobs", b"\xff\xfe[]"),
        lambda _: b"not a file of metrics",
    ],
    ids=[
        "empty",
        "cut",
        "cut within an entry",
        "cut within its head",
        "zeros",
        "zeros behind its head",
        "no text",
        "strange",
    ],
)
def test_a_broken_file_costs_its_own_counts_and_no_others(tmp_path, processes, spoil, is_alive):
    """The disk was full, or the machine lost its power. The file of a living process stays its own."""
    for process in processes:
        process.count(1)
    file = tmp_path / f"counter_{processes[1]._process.pid}.db"
    content = file.read_bytes()
    if not is_alive:
        processes[1].kill()
    file.unlink()  # a living process keeps writing to the one that it has open
    file.write_bytes(spoil(content))
    counted, events = Counted(tmp_path), []

    for _ in range(3):
        with capture_logs() as logs:
            families = counted.collect()
        events += [entry["event"] for entry in logs]
        assert {s.value for family in families for s in family.samples if s.name == "jobs_total"} == {1}

    assert file.exists() is is_alive
    assert events in ([], ["metric_file_skipped" if is_alive else "metric_file_removed"])


def test_the_counts_of_ended_processes_begin_anew_when_their_file_is_broken(tmp_path, processes):
    for process in processes:
        process.count(1)
        process.kill()
        _reported(tmp_path)
    dead = tmp_path / "counter_dead.db"
    dead.write_bytes(dead.read_bytes()[:60])

    with capture_logs() as logs:
        assert "jobs_totala" not in _reported(tmp_path)
        assert _reported(tmp_path)["took_seconds_count"] == 2
    assert [(entry["event"], entry["file"]) for entry in logs] == [("metric_file_removed", "counter_dead.db")]


SKEW = BatchHistogram("test_skew_seconds", "A test.", buckets=(-1, 1), registry=CollectorRegistry())


@pytest.mark.django_db(transaction=True)
def test_a_histogram_below_zero_has_no_sum_so_that_strict_readers_accept_the_page(settings):
    observe(SKEW, [-3, 0.5, 0.5])
    registry = CollectorRegistry()
    registry.register(Counted(settings.METRICS_DIR))
    families = {each.name: each for each in text_string_to_metric_families(generate_latest(registry).decode())}
    reported = {(sample.name, sample.labels["le"]): sample.value for sample in families["test_skew_seconds"].samples}
    assert reported == {("test_skew_seconds_bucket", bound): n for bound, n in {"-1.0": 1, "1.0": 3, "+Inf": 3}.items()}


# The port -------------------------------------------------------------------------------------------------------------
@pytest.fixture
def taken(settings, tmp_path, monkeypatch):
    """Set METRICS_PORT to a port that another socket uses. Servers of the test are closed afterwards."""
    opened = []
    listen = exposition._listen
    monkeypatch.setattr(exposition, "_listen", lambda application: opened.append(listen(application)) or opened[-1])
    with socket.create_server(("127.0.0.1", 0)) as other:
        settings.METRICS_HOST, settings.METRICS_PORT = other.getsockname()
        settings.METRICS_DIR = tmp_path
        yield other
    for server in opened:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("is_reported", [False, True])
def test_a_taken_port_is_opened_when_the_process_that_uses_it_ends_and_one_that_stays_taken_is_logged_once(
    taken, settings, monkeypatch, is_reported
):
    if is_reported:
        monkeypatch.setattr(exposition, "LOG_AFTER_SECONDS", 0.0)
    with capture_logs() as logs:
        exposition.serve()
        time.sleep(3 * exposition.RETRY_SECONDS)
        taken.close()
        assert _answers_within(60, f"http://127.0.0.1:{settings.METRICS_PORT}/metrics")
    reported = {"event": "metrics_port_not_opened", "log_level": "error", "port": settings.METRICS_PORT}
    assert logs == [{**reported, "error": "Address already in use"}] * is_reported


def test_the_port_asks_for_the_token(taken, settings):
    settings.METRICS_TOKEN = "a-token-of-the-tests-0123456789"
    taken.close()
    exposition.serve()
    url, known = f"http://127.0.0.1:{settings.METRICS_PORT}/metrics", f"Bearer {settings.METRICS_TOKEN}"
    assert _answers_within(60, url, Authorization=known)
    for wrong in ("", "Bearer", settings.METRICS_TOKEN, f"{known}x"):
        assert httpx.get(url, headers={"Authorization": wrong}, trust_env=False).status_code == 401


def test_an_address_of_another_machine_is_logged_at_once(taken, settings):
    settings.METRICS_HOST = "192.0.2.1"
    with capture_logs() as logs:
        exposition.serve()
        for thread in [thread for thread in threading.enumerate() if thread.name == "metrics-port"]:
            thread.join(60)
    assert [entry["error"] for entry in logs] == ["Cannot assign requested address"]


def _answers_within(seconds: float, url: str, **headers: str) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            return httpx.get(url, headers=headers, trust_env=False).status_code == 200
        except httpx.TransportError:
            time.sleep(0.1)
    return False
