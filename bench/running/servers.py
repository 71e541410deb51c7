"""Real servers for the length of a benchmark, in folders that are removed with it.

With DATABASE=system PostgreSQL is the one that Debian installs, with its defaults, instead of the embedded one.
"""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar
from urllib.parse import quote

import django
import httpx
import psutil
import psycopg
from django.core.management import call_command
from django.db import connections
from psycopg.conninfo import conninfo_to_dict

from bench.running.delaying import relay
from embedded.servers import installed
from embedded.servers.folders import own_folder
from embedded.servers.ports import free_port
from embedded.servers.postgres import EMBEDDED, SOCKET_NAME, EmbeddedPostgres
from embedded.servers.valkey import EmbeddedValkey

P = ParamSpec("P")
T = TypeVar("T")
FORK = multiprocessing.get_context("fork")
TOPIC = "/waku/2/rs/16/32"
PUBLISH_PATH = f"/relay/v1/messages/{quote(TOPIC, safe='')}"
SERVER_KEY = "02" * 32
# The secrets of an operator who sets DATABASE_URL. They protect nothing.
SECRETS = {
    "SECRET_KEY": "of-a-benchmark-only-and-long-enough-for-the-checks-of-django-itself",
    "FIELD_ENCRYPTION_KEYS": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
    "SERVER_PRIVATE_KEY": SERVER_KEY,
}


class Around(NamedTuple):
    """The servers around a process with Django: the folder of their data, and the first process of PostgreSQL."""

    folder: Path
    postgres: psutil.Process


@contextmanager
def around_django(kept: Path | None = None, **settings: str) -> Iterator[Around]:
    """Run PostgreSQL with these settings, Valkey, a node and a gorush, and set up Django in this process.

    Their data may be ``kept`` in a folder.
    """
    with ExitStack() as stack:
        folder = kept or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        folder.mkdir(parents=True, exist_ok=True)
        database_url, process = stack.enter_context(postgres(folder, **settings))
        urls = {
            "REDIS_URL": stack.enter_context(valkey(folder)),
            "WAKU_NODES": stack.enter_context(node("--shard", TOPIC)),
            "GORUSH_URL": stack.enter_context(gorush()),
        }
        set_up_django(folder, database_url, LOG_LEVEL="ERROR", API_CALLS_PER_MINUTE="100000", **urls)
        yield Around(folder, process)
        connections.close_all()  # PostgreSQL waits for that before it ends


def set_up_django(folder: Path, database_url: str, **others: str) -> None:
    """Set up Django in this process, and migrate the database. ``others`` are variables of the environment."""
    settings = {"DJANGO_SETTINGS_MODULE": "pushserver.settings", "DATA_DIR": str(folder / "data"), "DEBUG": "0"}
    os.environ.update(SECRETS | settings | {"DATABASE_URL": database_url} | others)
    django.setup()
    call_command("migrate", verbosity=0)


def in_own_process(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Return what this returns in a process of its own, because a process can set up Django only once."""
    receiver, sender = FORK.Pipe(duplex=False)
    child = FORK.Process(target=lambda: sender.send(work(*arguments, **named)))
    child.start()
    sender.close()
    try:
        result: T = receiver.recv()
    except EOFError:
        sys.exit("The benchmark failed; its messages are above.")
    except BaseException:
        child.terminate()  # it stops its servers
        raise
    finally:
        child.join()
    return result


@contextmanager
def postgres(folder: Path, **settings: str) -> Iterator[tuple[str, psutil.Process]]:
    """Run PostgreSQL with its usual durability. The value is its URL and its first process."""
    server = installed.postgres(folder / "postgres", settings)
    with _served(server) as running:
        try:
            yield server.url(), psutil.Process(running.pid)
        finally:
            running.send_signal(signal.SIGINT)  # at once, also with open connections


@contextmanager
def standby(folder: Path, url: str) -> Iterator[None]:
    """Run a standby of the database that has a socket there. It reports the rows that its own queries need."""
    copy_of(installed.postgres(Path(str(conninfo_to_dict(url)["host"])), {}), folder / "postgres")
    with psycopg.connect(url) as primary:
        [(max_connections,)] = primary.execute("SHOW max_connections").fetchall()  # a standby takes no fewer
    with postgres(folder, hot_standby="on", hot_standby_feedback="on", max_connections=str(max_connections)):
        yield


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
    with postgres(folder) as (url, process), ExitStack() as stack:
        if away_ms:
            parts = conninfo_to_dict(url)
            port = stack.enter_context(relay(f"{parts['host']}/{SOCKET_NAME}", away_ms))
            url = f"postgresql://{parts['user']}@127.0.0.1:{port}/{parts['dbname']}"  # noqa: PLW2901
        yield SECRETS | {"DATABASE_URL": url}, [process]


@contextmanager
def valkey(folder: Path) -> Iterator[str]:
    """Run Valkey. The value is its URL."""
    server = EmbeddedValkey(folder / "valkey", free_port())
    with _served(server):
        yield server.url


@contextmanager
def _served(server: EmbeddedPostgres | EmbeddedValkey) -> "Iterator[subprocess.Popen[bytes]]":
    spec = server.spec()
    spec.prepare()
    with process(spec.command, **spec.arguments()) as running:
        wait_until(server.is_ready)
        yield running


def node(*options: str) -> AbstractContextManager[str]:
    """Run a development node. The value is its URL."""
    return _module("embedded.node", "/health", *options)


def gorush() -> AbstractContextManager[str]:
    """Run a development gorush. The value is its URL."""
    return _module("embedded.gorush", "/healthz")


@contextmanager
def _module(name: str, health: str, *options: str) -> Iterator[str]:
    url = f"http://127.0.0.1:{(port := free_port())}"
    with process([sys.executable, "-m", name, "--port", str(port), *options]):
        wait_until(lambda: answers(url + health))
        yield url


@contextmanager
def process(command: Sequence[str], **arguments: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command until the block ends."""
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **(quiet | arguments)) as running:
        try:
            yield running
        finally:
            running.terminate()


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
        return sum(process.cpu_times()[:4])
    except psutil.NoSuchProcess:
        return 0.0
