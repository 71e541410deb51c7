"""Real servers for the length of a benchmark, in folders that are removed with it.

With DATABASE=system PostgreSQL is the one that Debian installs, with its defaults, instead of the embedded one.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import quote

import django
import httpx
import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict

from embedded.servers import installed
from embedded.servers.accounts import own_folder
from embedded.servers.ports import free_port, is_free
from embedded.servers.postgres import EMBEDDED, SOCKET_NAME, EmbeddedPostgres
from embedded.servers.valkey import EmbeddedValkey

TOPIC = "/waku/2/rs/16/32"
PUBLISH_PATH = f"/relay/v1/messages/{quote(TOPIC, safe='')}"
SERVER_KEY = "02" * 32
# The secrets of an operator who sets DATABASE_URL. They protect nothing.
SECRETS = {
    "SECRET_KEY": "of-a-benchmark-only-and-long-enough-for-the-checks-of-django-itself",
    "FIELD_ENCRYPTION_KEYS": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
    "SERVER_PRIVATE_KEY": SERVER_KEY,
}


def environment(folder: Path, database_url: str, **others: str) -> dict[str, str]:
    """Return the environment of a process of the server on this database. ``others`` are further variables."""
    settings = {"DJANGO_SETTINGS_MODULE": "pushserver.settings", "DATA_DIR": str(folder / "data"), "DEBUG": "0"}
    return os.environ | SECRETS | settings | {"DATABASE_URL": database_url} | others


def set_up_django(folder: Path, database_url: str, **others: str) -> None:
    """Set up Django in this process, and migrate the database."""
    os.environ.update(environment(folder, database_url, **others))
    django.setup()
    from django.core.management import call_command  # noqa: PLC0415 - once Django is set up

    call_command("migrate", verbosity=0)


def manage(*arguments: str, environment: Mapping[str, str]) -> None:
    """Run a management command in this environment."""
    subprocess.run([sys.executable, "manage.py", *arguments], env=environment, check=True)


def result_of(module: str, *arguments: object, environment: Mapping[str, str] | None = None) -> Any:
    """Run a module as a program, which sets up a Django of its own, and return the JSON in its last line."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    child = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    return json.loads(child.stdout.splitlines()[-1])


@contextmanager
def postgres(folder: Path, **settings: str) -> Iterator[tuple[str, psutil.Process]]:
    """Run PostgreSQL with its usual durability. The value is its URL and its first process."""
    server = installed.postgres(folder / "postgres", settings)
    spec = server.spec()
    spec.prepare()
    with process(spec.command, **spec.arguments()) as running:
        wait_until(server.is_ready)
        try:
            yield server.url(), psutil.Process(running.pid)
        finally:
            running.send_signal(signal.SIGINT)  # at once, also with open connections


@contextmanager
def standby(folder: Path, url: str) -> Iterator[tuple[str, psutil.Process]]:
    """Run a standby of the database that has a socket there. It reports the rows that its own queries need.

    The value is its URL and its first process.
    """
    copy_of(installed.postgres(Path(str(conninfo_to_dict(url)["host"])), {}), folder / "postgres")
    with psycopg.connect(url) as primary:
        [(max_connections,)] = primary.execute("SHOW max_connections").fetchall()  # a standby takes no fewer
    with postgres(folder, hot_standby="on", hot_standby_feedback="on", max_connections=str(max_connections)) as running:
        yield running


def copy_of(primary: EmbeddedPostgres, data_dir: Path) -> None:
    """Create the data folder of a standby with PostgreSQL's own program."""
    shutil.rmtree(data_dir, ignore_errors=True)
    source = f"host={primary.socket_dir} port={primary.settings.get('port', 5432)} user=postgres"
    options = ["--write-recovery-conf", "--checkpoint=fast", "--wal-method=stream"]
    command = [str(primary.programs / "pg_basebackup"), "--dbname", source, "--pgdata", str(data_dir), *options]
    subprocess.run(command, check=True, capture_output=True)
    for left_over in data_dir.glob(f"{SOCKET_NAME}*"):  # with it, a copy with the same port takes itself for running
        left_over.unlink()
    own_folder(data_dir, primary.account)


@contextmanager
def configured_database(folder: Path, *, away_ms: float = 0.0) -> Iterator[tuple[dict[str, str], list[psutil.Process]]]:
    """Run the database for `manage.py up`, unless that brings its own. It may be ``away_ms`` milliseconds away.

    The value is the environment of an operator, with secrets, and the processes beside those of `up`.
    """
    if installed.chosen() is EMBEDDED and not away_ms:
        yield {"DATABASE_URL": ""}, []
        return
    with postgres(folder) as (url, process), _away(url, away_ms) if away_ms else nullcontext(url) as url_there:
        yield SECRETS | {"DATABASE_URL": url_there}, [process]


@contextmanager
def _away(url: str, milliseconds: float) -> Iterator[str]:
    """Put a database further away. The value is its URL there."""
    parts = conninfo_to_dict(url)
    command = [sys.executable, "-m", "bench.running.delaying", "--port", str(port := free_port())]
    command += ["--socket", f"{parts['host']}/{SOCKET_NAME}", "--milliseconds", str(milliseconds)]
    there = f"postgresql://{parts['user']}@127.0.0.1:{port}/{parts['dbname']}"
    with process(command):
        wait_until(lambda: not is_free("127.0.0.1", port))
        yield there


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
    with _module("embedded.node", "/health", options) as url:
        yield url


@contextmanager
def gorush() -> Iterator[str]:
    """Run a development gorush. The value is its URL."""
    with _module("embedded.gorush", "/healthz", ()) as url:
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


def close_connections() -> None:
    """Close the connections, because PostgreSQL waits for that before it ends."""
    from django.db import connections  # noqa: PLC0415 - Django is set up only now

    connections.close_all()


def wait_until(is_true: Callable[[], bool], seconds: float = 30, *, every: float = 0.02) -> None:
    """Wait until ``is_true`` returns true, and check every ``every`` seconds. Raises TimeoutError."""
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
    """Return the CPU time of a process and of its children that have ended, or 0 when it has ended itself."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)
