"""The commands of the development node and gorush, each as a process of its own."""

import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import orjson
import pytest

from embedded.servers.ports import free_port

NODE, GORUSH = "embedded.node", "embedded.gorush"
of_both = pytest.mark.parametrize("module", [NODE, GORUSH])


@contextmanager
def started(module: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until_ready(module: str, port: int) -> None:
    deadline, path = time.monotonic() + 60, "health" if module == NODE else "healthz"
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=1):
                return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize(("module", "stop"), [(NODE, signal.SIGINT), (GORUSH, signal.SIGTERM)])
def test_stops_cleanly_on_a_signal_and_never_logs_a_token(module: str, stop: signal.Signals, tmp_path: Path) -> None:
    port = free_port()
    with started(module, "--port", port, "--data", tmp_path / "new" / "data.sqlite3") as process:
        wait_until_ready(module, port)
        with started(module, "--port", port) as second:
            taken, _ = second.communicate(timeout=60)
        for token in ("secret-token", "dead-secret"):
            body = orjson.dumps({"notifications": [{"platform": 1, "tokens": [token]}]})
            with suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api/push", body, timeout=60).close()
        process.send_signal(stop)
        output, _ = process.communicate(timeout=60)
    assert (process.returncode, output.count("\n"), "secret" in output) == (0, 2, False)
    assert f"http://127.0.0.1:{port}" in output
    assert (second.returncode, taken.count("\n"), str(port) in taken) == (1, 1, True)


@of_both
def test_says_in_one_line_that_its_data_is_no_database(module: str, tmp_path: Path) -> None:
    (tmp_path / "data.sqlite3").write_bytes(b"something else entirely" * 100)
    with started(module, "--port", 0, "--data", tmp_path / "data.sqlite3") as process:
        output, _ = process.communicate(timeout=60)
    assert (process.returncode, output.count("\n")) == (1, 1)
