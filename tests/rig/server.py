"""Whole server: `Fleet` is its processes one by one, as `manage.py up` starts them, and `Up` is that command itself.

Every process of a fleet leads a process group, so that a kill takes the children of a worker along, and has a log file.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from signal import SIGKILL
from typing import Any

import httpx
import psutil
import psycopg
from coincurve import PrivateKey
from django.conf import settings

from embedded.servers.postgres import EmbeddedPostgres
from embedded.servers.valkey import EmbeddedValkey
from embedded.stack import plan
from embedded.supervisor.guard import Guard, kill_group
from embedded.supervisor.processes import ProcessSpec, StopOrder, python
from kit.http import tls_context
from pushserver.config.role import PROCESSES
from waku_bridge.codec.keys import Identity

PUBSUB_TOPIC = "/waku/2/rs/16/32"
RING_CAPACITY = 10_000
# Long enough for a machine that is slow and busy with other work: nothing here measures time.
START_SECONDS, STOP_SECONDS = 180.0, 60.0
SERVER = Identity(PrivateKey(b"\x02" * 32))  # SERVER_PRIVATE_KEY of the test session
# Variables without which `manage.py up` starts servers of its own.
CONFIGURED = {"DATABASE_URL", "REDIS_URL", "SECRET_KEY", "FIELD_ENCRYPTION_KEYS", "SERVER_PRIVATE_KEY"}
# Every push is counted, so none may be coalesced with another one. A few senders send more requests than a client may.
UNLIMITED = {
    "MAX_OPEN_PER_ROUTE": "10000",
    **{f"{name}_LIMITS": "1000000/1,100000000/60" for name in ("ROUTE", "SENDER", "GLOBAL")},
}
# The lease follows from the timeout. It is short, so that a test of a killed worker need not wait for two minutes.
OF_FLOWS = {"GORUSH_TIMEOUT_SECONDS": "3", "REPLY_DEADLINE_SECONDS": "5", **UNLIMITED}


@dataclass(frozen=True, slots=True)
class Fleet:
    """Running processes by the names of their specs. ``environment`` is added to the test session's."""

    folder: Path
    environment: dict[str, str]
    guard: Guard
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, *specs: ProcessSpec) -> None:
        for spec in specs:
            ours = self._own(spec)
            with (self.folder / f"{spec.name}.log").open("ab") as log:
                process = subprocess.Popen(ours.command, stdout=log, stderr=log, **ours.arguments())
            self.guard.watch(process.pid, spec.stop_signal)
            self.running[spec.name] = process

    def _own(self, spec: ProcessSpec) -> ProcessSpec:
        """Return the process with the environment of the fleet, without the secrets that the table keeps from it."""
        others = [row.name for row in settings.ENVIRONMENT.table if row.used_by and spec.name not in row.used_by]
        withheld = dict.fromkeys(others if spec.name in PROCESSES else [], "")
        environment = {**spec.environment, **self.environment, **withheld}
        return replace(spec, environment=environment, folder=spec.folder or self.folder)

    def run(self, spec: ProcessSpec) -> None:
        """Run a process to its end, and check that it succeeded."""
        code, printed = self.run_to_end(spec)
        assert code == 0, printed

    def run_to_end(self, spec: ProcessSpec, *, seconds: float = START_SECONDS) -> tuple[int, str]:
        """Run a process to its end. Return its exit code and output."""
        before = len(self.log(spec.name)) if (self.folder / f"{spec.name}.log").exists() else 0
        self.start(spec)
        code = self.running[spec.name].wait(timeout=seconds)
        self._forget(spec.name)
        return code, self.log(spec.name)[before:]

    def stop(self, *names: str) -> None:
        for name in names:
            self.running[name].terminate()
        for name in names:
            try:
                self.running[name].wait(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                kill_group(self.running[name].pid, SIGKILL)
            self._forget(name)

    def kill(self, *names: str) -> None:
        """Kill processes at the same moment, as a power cut does."""
        for name in names:
            kill_group(self.running[name].pid, SIGKILL)
        for name in names:
            self._forget(name)

    def answers(self, name: str, url: str) -> bool:
        """Return whether a process answers at ``url``, and fail if it has ended."""
        assert self.running[name].poll() is None, self.log(name)
        return _answers(url)

    def rows(self, query: Any, *parameters: object) -> list[tuple[Any, ...]]:
        """Run a statement in the server's database, and return its rows."""
        with psycopg.connect(self.environment["DATABASE_URL"], autocommit=True) as connection:
            cursor = connection.execute(query, parameters)
            return cursor.fetchall() if cursor.description else []

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def logs(self) -> dict[str, str]:
        return {file.stem: self.log(file.stem) for file in self.folder.glob("*.log")}

    def _forget(self, name: str) -> None:
        process = self.running.pop(name)
        process.wait()
        kill_group(process.pid, SIGKILL)  # children that outlived their leader
        self.guard.forget(process.pid)


NewFleet = Callable[..., Fleet]


@contextmanager
def running(server: EmbeddedPostgres | EmbeddedValkey, guard: Guard, log: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """Run an embedded server as the supervisor does, with its output in ``log``."""
    spec = server.spec()
    spec.prepare()
    with log.open("ab") as out:
        process = subprocess.Popen(spec.command, stdout=out, stderr=out, **spec.arguments())
    guard.watch(process.pid, spec.stop_signal)
    try:
        wait_until(lambda: server.is_ready() or process.poll() is not None, what=f"{spec.name} is ready")
        assert process.poll() is None, log.read_text()
        yield process
    finally:
        kill_group(process.pid, spec.stop_signal)
        process.wait(timeout=STOP_SECONDS)
        guard.forget(process.pid)


@contextmanager
def served(fleet: Fleet) -> Iterator[Fleet]:
    """Start the server, and stop at the end all processes that run then."""
    try:
        start(fleet)
        yield fleet
    finally:
        fleet.stop(*fleet.running)


def start(fleet: Fleet) -> None:
    """Start every process of the server, and its node and gorush."""
    node_url, gorush_url = fleet.environment["WAKU_NODES"], fleet.environment["GORUSH_URL"]
    fleet.start(node(port_of(node_url)), gorush(port_of(gorush_url)), *services().values())
    for name, url in (("node", f"{node_url}/health"), ("gorush", f"{gorush_url}/healthz")):
        wait_until(partial(fleet.answers, name, url), what=f"{name} at {url}")


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


def node(port: int) -> ProcessSpec:
    """Return the process of a node that is subscribed from the start: early messages wait in its ring for the
    bridge.
    """
    ring = ["--relay-cache-capacity", str(RING_CAPACITY), "--shard", PUBSUB_TOPIC]
    return python("node", "-m", "embedded.node", "--port", str(port), *ring, stop_order=StopOrder.PEER)


def gorush(port: int) -> ProcessSpec:
    return python("gorush", "-m", "embedded.gorush", "--port", str(port), stop_order=StopOrder.PEER)


def migrate() -> ProcessSpec:
    return plan.manage("migrate", "migrate", "--verbosity=0", stop_order=StopOrder.FRONT)


def services() -> dict[str, ProcessSpec]:
    """Return the processes of `manage.py up` by name, with one process per kind of worker and no web server."""
    planned = plan.services(cpus=1)
    return {spec.name: spec for spec in planned}


def wait_until(
    is_so: Callable[[], object], *, what: str, seconds: float = START_SECONDS, pause_seconds: float = 0.05
) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(pause_seconds)


def wait_for_http(*urls: str) -> None:
    """Wait without an event loop, as the browser of other tests may have one in this thread."""
    for url in urls:
        wait_until(partial(_answers, url), what=url)


def _answers(url: str) -> bool:
    with suppress(httpx.TransportError):  # a TLS context of its own would take longer to make than the answer
        return httpx.get(url, trust_env=False, verify=tls_context()).status_code == HTTPStatus.OK
    return False


def log_in(browser: httpx.Client, name: str, password: str) -> dict[str, str]:
    """Log in to the console, and return what a form must send back."""
    [token] = set(re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', browser.get("/admin/login/").text))
    sent = {"username": name, "password": password, "csrfmiddlewaretoken": token, "next": "/admin/"}
    assert browser.post("/admin/login/", data=sent).status_code == HTTPStatus.FOUND
    return {"csrfmiddlewaretoken": browser.cookies["csrftoken"]}


def manage_py(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a management command to its end, with this environment and ``environment``."""
    command, given = [sys.executable, str(settings.BASE_DIR / "manage.py"), *arguments], os.environ | environment
    return subprocess.run(command, env=given, capture_output=True, text=True, check=False, timeout=START_SECONDS)


class Up:
    """`manage.py up` of the code in ``folder``, or another ``command`` there, with its output. Only ``environment``
    configures it. ``options`` are those of subprocess.
    """

    def __init__(
        self,
        data_dir: Path,
        port: int,
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path = settings.BASE_DIR,
        python: str = sys.executable,
        command: Sequence[str] = (),
        **options: Any,
    ) -> None:
        unconfigured = {name: value for name, value in os.environ.items() if name not in CONFIGURED}
        own = {"DATA_DIR": str(data_dir), "PORT": str(port)}
        self.environment = {**unconfigured, **own, **(environment or {})}
        self.manage_py = [python, str(folder / "manage.py")]
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        with log.open("w") as out:
            self.process = psutil.Popen(
                command or [*self.manage_py, "up"], env=self.environment, cwd=folder, stdout=out, stderr=out, **options
            )

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def shows(self, pattern: str, seconds: float = START_SECONDS) -> re.Match[str]:
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.output())):
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.1)
        return found

    def manage(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [*self.manage_py, *arguments]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=START_SECONDS
        )

    def ends(self, number: int, seconds: float = START_SECONDS) -> int:
        family = self.process.children(recursive=True)
        self.process.send_signal(number)
        code = int(self.process.wait(timeout=seconds))
        deadline = time.monotonic() + STOP_SECONDS
        while alive := [process for process in family if is_alive(process)]:
            assert time.monotonic() < deadline, (alive, self.output())
            time.sleep(0.1)
        return code


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs. A zombie does not: when init reaps it depends on the machine."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
