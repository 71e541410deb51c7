"""Run real servers for the length of a benchmark, in folders that are removed with it.

With DATABASE=system PostgreSQL is the one that Debian installs, with its defaults, instead of the embedded one.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from bench.reading import SERVER_KEY
from pushserver.embedded import installed
from pushserver.embedded.ports import free_port
from pushserver.embedded.postgres import EMBEDDED
from pushserver.embedded.valkey import EmbeddedValkey

# Of an operator who sets DATABASE_URL. They protect nothing.
SECRETS = {
    "SECRET_KEY": "of-a-benchmark-only-and-long-enough-for-the-checks-of-django-itself",
    "FIELD_ENCRYPTION_KEYS": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
    "SERVER_PRIVATE_KEY": SERVER_KEY,
}


@contextmanager
def postgres(folder: Path, **settings: str) -> Iterator[tuple[str, psutil.Process]]:
    """Run PostgreSQL with its usual safety. The value is its URL and its first process."""
    server = installed.postgres(folder / "postgres", settings)
    spec = server.spec()
    spec.prepare()
    with process(spec.command, **spec.arguments()) as running:
        wait_until(server.is_ready)
        try:
            yield server.url(), psutil.Process(running.pid)
        finally:
            running.send_signal(signal.SIGINT)  # at once, whoever is still connected


@contextmanager
def configured_database(folder: Path) -> Iterator[tuple[dict[str, str], list[psutil.Process]]]:
    """Run the database for `manage.py up` unless it brings its own.

    The value is what an operator sets in the environment, secrets among it, and the processes beside those of `up`.
    """
    if installed.chosen() is EMBEDDED:
        yield {"DATABASE_URL": ""}, []
        return
    with postgres(folder) as (url, process):
        yield SECRETS | {"DATABASE_URL": url}, [process]


@contextmanager
def valkey(folder: Path) -> Iterator[str]:
    """Run Valkey. The value is its URL."""
    server = EmbeddedValkey(folder / "valkey", free_port())
    spec = server.spec()
    spec.prepare()
    with process(spec.command, **spec.arguments()):
        wait_until(server.is_ready)
        yield server.url


@contextmanager
def node(*options: str) -> Iterator[str]:
    """Run a development node. The value is its URL."""
    with _module("waku_bridge.devnode", "/health", options) as url:
        yield url


@contextmanager
def gorush() -> Iterator[str]:
    """Run a development gorush. The value is its URL."""
    with _module("notifications.gateways.gorush.devserver", "/healthz", ()) as url:
        yield url


@contextmanager
def _module(name: str, health: str, options: Sequence[str]) -> Iterator[str]:
    url = f"http://127.0.0.1:{(port := free_port())}"
    with process([sys.executable, "-m", name, "--port", str(port), *options]):
        wait_until(lambda: answers(url + health))
        yield url


@contextmanager
def process(command: Sequence[str], **arguments: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command until the block ends."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **arguments) as running:
        try:
            yield running
        finally:
            running.terminate()


def wait_until(is_true: Callable[[], bool], seconds: float = 30, *, every: float = 0.02) -> None:
    """Wait until ``is_true`` returns true, asking again after ``every`` seconds. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError("a server of the benchmark does not do what it waits for")
        time.sleep(every)


def answers(url: str) -> bool:
    """Return whether the URL answers with success."""
    try:
        return httpx.get(url, trust_env=False).is_success
    except httpx.TransportError:
        return False


def cpu_seconds(*roots: psutil.Process) -> float:
    """Return the CPU time of these processes and their children, those that have ended included."""
    return sum(spent_by(each) for root in roots for each in [root, *root.children(recursive=True)])


def spent_by(process: psutil.Process) -> float:
    """Return the CPU time of a process and of its children that have ended, 0 when it has ended itself."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)
