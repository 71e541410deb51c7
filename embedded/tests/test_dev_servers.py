"""Tests of the commands of the development node and gorush, each as a process of its own."""

import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import orjson
import pytest
from aiohttp.test_utils import unused_port

GORUSH = "embedded.gorush"
HEALTH = {"embedded.node": "health", GORUSH: "healthz"}
of_both = pytest.mark.parametrize("module", HEALTH)


@contextmanager
def started(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until_ready(module: str, port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{HEALTH[module]}", timeout=1):
                return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("module", "event"), [("embedded.node", "devnode_"), (GORUSH, "gorush_devserver_")])
def test_stops_cleanly_on_a_signal(module, event, stop, tmp_path):
    port = unused_port()
    with started(module, "--port", str(port), "--data", str(tmp_path / "new" / "data.sqlite3")) as process:
        wait_until_ready(module, port)
        process.send_signal(stop)
        output, _ = process.communicate(timeout=10)
    assert (process.returncode, output.count("\n")) == (0, 2)
    assert f"{event}started" in output
    assert f"http://127.0.0.1:{port}" in output


@of_both
def test_says_in_one_line_that_its_port_is_taken(module):
    port = unused_port()
    with started(module, "--port", str(port)) as first:
        wait_until_ready(module, port)
        with started(module, "--port", str(port)) as second:
            output, _ = second.communicate(timeout=10)
        first.kill()
        first.communicate()
    assert (second.returncode, output.count("\n")) == (1, 1)
    assert str(port) in output


@of_both
def test_says_in_one_line_that_its_data_is_no_database(module, tmp_path):
    (tmp_path / "data.sqlite3").write_bytes(b"something else entirely" * 100)
    with started(module, "--port", "0", "--data", str(tmp_path / "data.sqlite3")) as process:
        output, _ = process.communicate(timeout=10)
    assert (process.returncode, output.count("\n")) == (1, 1)


def test_gorush_never_logs_a_token():
    port = unused_port()
    with started(GORUSH, "--port", str(port)) as process:
        wait_until_ready(GORUSH, port)
        for token in ("secret-token", "dead-secret", "cut-secret"):
            body = orjson.dumps({"notifications": [{"platform": 1, "tokens": [token]}]})
            with suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api/push", body, timeout=5).close()
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=10)
    assert "secret" not in output
    assert process.returncode == 0
