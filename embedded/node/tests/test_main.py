"""Tests of the command itself, as a process of its own."""

import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from aiohttp.test_utils import unused_port

COMMAND = (sys.executable, "-m", "embedded.node")


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
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_stops_cleanly_on_a_signal(stop, tmp_path):
    port = unused_port()
    with started("--port", str(port), "--data", str(tmp_path / "new" / "store.sqlite3")) as process:
        wait_until_ready(port)
        process.send_signal(stop)
        output, _ = process.communicate(timeout=10)
    assert (process.returncode, output.count("\n")) == (0, 2)
    assert "devnode_started" in output
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
    (tmp_path / "store.sqlite3").write_bytes(b"something else entirely" * 100)
    with started("--port", "0", "--data", str(tmp_path / "store.sqlite3")) as process:
        output, _ = process.communicate(timeout=10)
    assert (process.returncode, output.count("\n")) == (1, 1)
