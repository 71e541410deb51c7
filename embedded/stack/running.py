"""Start, replacement and stop of the whole server: the order of starts, and the meaning of signals."""

import asyncio
import fcntl
import json
import math
import os
import shutil
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM, SIGUSR1
from urllib.parse import urlsplit

from coincurve import PrivateKey
from django.conf import settings

from embedded.servers.folders import write_private
from embedded.servers.ports import is_free
from embedded.stack.parts import EmbeddedPart
from embedded.stack.plan import Plan, preload
from embedded.supervisor.guard import Guard
from embedded.supervisor.output import MergedLog
from embedded.supervisor.processes import ProcessSpec, StopOrder
from embedded.supervisor.supervisor import Supervisor
from kit.processes import StartError
from pushserver.config.data_dir import FILE_NAME, LOCK_NAME, POSTGRES_FOLDER, belongs_to, usable
from pushserver.console.health.verdicts import State
from pushserver.release import version

READY_SECONDS = 60.0
POLL_SECONDS = 0.05
FIRST_REMINDER_SECONDS = 2.0
REMINDER_SECONDS = 10.0
ANSWER_SECONDS = 5.0
VERSION_NAME = "version"  # the version that made the data; there was no such file before 0.2.0
# A first start writes 50 MB, and PostgreSQL that cannot write its log ends.
MIN_FREE_MIB = 128


def refuse_foreign_data(folder: Path) -> None:
    """Raise StartError when another account, or a version before 0.2.0, has started the server on this folder.

    Data are served by the account that made them. Files of two accounts side by side would be of use to neither.
    """
    with usable(folder):
        lock = folder / LOCK_NAME
        if lock.exists() and lock.stat().st_uid != os.geteuid():
            raise StartError(belongs_to(folder, lock.stat().st_uid))
        if (folder / POSTGRES_FOLDER).exists() and not (folder / VERSION_NAME).exists():
            raise StartError(
                f"{folder} holds data of a version before 0.2.0, from which there is no way up: set DATA_DIR to "
                f"another folder."
            )


def refuse_a_full_disk(folder: Path) -> None:
    """Raise StartError when there is no room to start a server in."""
    free = shutil.disk_usage(folder).free // 2**20
    if free < MIN_FREE_MIB:
        raise StartError(
            f"the disk of {folder} has {free} MiB left, and {MIN_FREE_MIB} are needed: make room there, or set "
            f"DATA_DIR to a folder on another disk."
        )


@contextmanager
def only_one(data_dir: Path) -> Iterator[None]:
    """Hold the lock that allows one `manage.py up` per ``data_dir``. The kernel releases it with the process.

    This version must have made the data, or must be able to use it.

    Raises StartError when another process, another account or a version before 0.2.0 has it.
    """
    refuse_foreign_data(data_dir)
    with usable(data_dir):
        data_dir.mkdir(parents=True, exist_ok=True)
        file = (data_dir / LOCK_NAME).open("a+", encoding="ascii")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise StartError(f"already running on {data_dir} (process {file.read() or '?'}).") from None
        with usable(data_dir):
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            if not (made_by := data_dir / VERSION_NAME).exists():
                made_by.write_text(f"{version()}\n", encoding="ascii")
        yield


def run(plan: Plan, log: MergedLog, private_key: bytes) -> None:
    """Run the server until a signal, and return when everything has been stopped.

    Raises StartError when it cannot start.
    """
    if not is_free(plan.host, plan.port):
        raise StartError(f"port {plan.port} on {plan.host} is in use: set PORT to another one.")
    with Guard() as guard, _noted(settings.EMBEDDED, settings.DATA_DIR / FILE_NAME):
        asyncio.run(_run(plan, Supervisor(log, guard), private_key))


async def _run(plan: Plan, supervisor: Supervisor, private_key: bytes) -> None:
    """Run the server until a signal. A second signal stops it without waiting for work in progress."""
    stopping, replacing, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()

    def stop() -> None:
        if stopping.is_set():
            supervisor.hurry()
        stopping.set()

    for number in (SIGINT, SIGTERM, SIGHUP):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(SIGUSR1, replacing.set)
    working = asyncio.create_task(_start_and_replace(plan, supervisor, private_key, replacing))
    waiting = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.is_set():
            working.result()  # raises the error of the start
    finally:
        working.cancel()
        waiting.cancel()
        supervisor.print_line("Stopping.")
        await supervisor.stop()
        supervisor.print_line("Stopped.")


async def _start_and_replace(plan: Plan, supervisor: Supervisor, private_key: bytes, replacing: asyncio.Event) -> None:
    """Start all processes, and replace them at every SIGUSR1.

    The new processes import the code anew, so it may be another version.
    """
    await _start(plan, supervisor, private_key)
    while await replacing.wait():
        replacing.clear()
        try:
            await _replace_all(plan, supervisor)
        except (OSError, StartError) as error:  # the old processes go on
            supervisor.print_line(f"Not replaced: {error}")


async def _start(plan: Plan, supervisor: Supervisor, private_key: bytes) -> None:
    """Start all processes without dependencies at once. Meanwhile import the modules that the others will share."""
    embedded = [part.spec for part in plan.embedded]
    supervisor.print_line(f"Starting {', '.join(spec.name for spec in [*embedded, plan.web, *plan.services])}.")
    await asyncio.gather(*map(supervisor.start, embedded))
    preload()
    await supervisor.start(plan.web)
    waiting = [_wait_for(part, supervisor) for part in plan.embedded]
    await asyncio.gather(_prepare_database(plan, plan.database, supervisor), *waiting)
    for spec in plan.services:
        await supervisor.start(spec)
    await _wait_until_ready(plan, supervisor)
    for line in [*_summary(plan.url, private_key, plan.embedded), *plan.notes]:
        supervisor.print_line(line)


async def _replace_all(plan: Plan, supervisor: Supervisor) -> None:
    """Replace the processes one after the other. The embedded servers stay as they are."""
    supervisor.print_line("Replacing all processes but the embedded servers.")
    await _prepare_database(plan, replace(plan.database, target=None), supervisor)
    for spec in [*plan.services, plan.web]:
        await supervisor.replace(replace(spec, target=None))
    await _wait_until_ready(plan, supervisor)
    supervisor.print_line("Replaced.")


async def _wait_for(part: EmbeddedPart, supervisor: Supervisor) -> None:
    async def missing() -> str:
        return "" if part.is_ready() else part.spec.name

    await _wait(missing, supervisor, seconds=READY_SECONDS)


async def _prepare_database(plan: Plan, spec: ProcessSpec, supervisor: Supervisor) -> None:
    """Run the process that brings the database up to date, once an embedded one takes connections."""
    for part in plan.embedded:
        if part.spec.stop_order is StopOrder.DATABASE:
            await _wait_for(part, supervisor)
    preparing = asyncio.create_task(supervisor.run(spec))

    async def missing() -> str:
        return "" if preparing.done() else "the database to be up to date"

    await _wait(missing, supervisor)
    if preparing.result() != 0:
        raise StartError("the database cannot be used; the message above says why.")


async def _wait_until_ready(plan: Plan, supervisor: Supervisor) -> None:
    url = f"{plan.url}/readyz"

    async def missing() -> str:
        status, body = await fetch(url)
        return "" if status == HTTPStatus.OK else f"{url}: {_reasons(body)}" if status else "the web server"

    await _wait(missing, supervisor)


async def _wait(missing: Callable[[], Awaitable[str]], supervisor: Supervisor, *, seconds: float = math.inf) -> None:
    """Wait until nothing is missing. Print what is after a moment, and then from time to time.

    Raises StartError when that lasts for ``seconds``.
    """
    began_at = time.monotonic()
    remind_at = began_at + FIRST_REMINDER_SECONDS
    while words := await missing():
        now = time.monotonic()
        if now > began_at + seconds:
            raise StartError(f"{words} is not ready after {seconds:g} s; its messages are above.")
        if now > remind_at:
            supervisor.print_line(f"Waiting for {words}.")
            remind_at = now + REMINDER_SECONDS
        await asyncio.sleep(POLL_SECONDS)


async def fetch(url: str) -> tuple[int, bytes]:
    """Return the HTTP status and the body of ``url``, or status 0 when nothing answers.

    No thread is used, because this process may have to fork. asyncio would resolve a name in a thread.
    """
    parts = urlsplit(url)
    request = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
    with suppress(OSError, TimeoutError, ValueError, IndexError):
        address = str(socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)[0][4][0])
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(address, parts.port)
            with closing(writer):
                writer.write(request.encode())
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1]), body
    return 0, b""


def _reasons(body: bytes) -> str:
    """Return the missing parts that `/readyz` names. The text of any other body is not shown."""
    try:
        indicators = json.loads(body)["indicators"]
    except (ValueError, KeyError):
        return "no answer"
    return "; ".join(f"{found['id']}: {found['sentence']}" for found in indicators if found["state"] == State.RED)


@contextmanager
def _noted(embedded: Mapping[str, str], file: Path) -> Iterator[None]:
    """Write the settings of the embedded servers to a file, for every other process.

    The file contains passwords, so its mode is 600.
    """
    draft = file.with_name(f"{file.name}.new")
    write_private(draft, json.dumps(embedded, indent=1))
    draft.replace(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def _summary(url: str, private_key: bytes, embedded: Sequence[EmbeddedPart]) -> Iterator[str]:
    """Yield the lines that are shown once the server is ready. They have no secret."""
    public_key = PrivateKey(private_key).public_key
    yield f"Ready. Console: {url}/admin/ (first user: admin)"
    yield f"Server public key: {public_key.format().hex()}"
    yield f"Server chat key: 0x{public_key.format(compressed=False).hex()}"
    for part in embedded:
        yield f"Embedded {part.spec.name}: {part.address}"
