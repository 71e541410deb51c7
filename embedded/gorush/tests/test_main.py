"""Tests of the command itself, as a process of its own."""

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

COMMAND = (sys.executable, "-m", "embedded.gorush")


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until_ready(port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1):
                return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_stops_cleanly_on_a_signal(stop, tmp_path):
    port = unused_port()
    with started("--port", str(port), "--data", str(tmp_path / "new" / "pushes.sqlite3")) as process:
        wait_until_ready(port)
        process.send_signal(stop)
        output, _ = process.communicate(timeout=10)
    assert (process.returncode, output.count("\n")) == (0, 2)
    assert "gorush_devserver_started" in output
    assert f"http://127.0.0.1:{port}" in output


def test_says_in_one_line_that_its_port_is_taken():
    port = unused_port()
    with started("--port", str(port)) as first:
        wait_until_ready(port)
        with started("--port", str(port)) as second:
            output, _ = second.communicate(timeout=10)
        first.kill()
        first.communicate()
    assert (second.returncode, output.count("\n")) == (1, 1)
    assert str(port) in output


def test_says_in_one_line_that_its_data_is_no_database(tmp_path):
    (tmp_path / "pushes.sqlite3").write_bytes(b"something else entirely" * 100)
    with started("--port", "0", "--data", str(tmp_path / "pushes.sqlite3")) as process:
        output, _ = process.communicate(timeout=10)
    assert (process.returncode, output.count("\n")) == (1, 1)


def test_never_logs_a_token():
    port = unused_port()
    with started("--port", str(port)) as process:
        wait_until_ready(port)
        for token in ("secret-token", "dead-secret", "cut-secret"):
            body = orjson.dumps({"notifications": [{"platform": 1, "tokens": [token]}]})
            with suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api/push", body, timeout=5).close()
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=10)
    assert "secret" not in output
    assert process.returncode == 0
