"""Start, replacement and stop of the whole server: the order of starts, and the meaning of signals."""

import asyncio
import fcntl
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM, SIGUSR1

from coincurve import PrivateKey
from django.conf import settings

from embedded.servers.folders import write_private
from embedded.servers.parts import EmbeddedPart, fetch
from embedded.servers.ports import is_free
from embedded.stack.plan import Plan, preload
from embedded.supervisor.guard import Guard
from embedded.supervisor.output import MergedLog
from embedded.supervisor.processes import ProcessSpec
from embedded.supervisor.supervisor import Supervisor
from kit.errors import StartError
from kit.health.indicators import State
from pushserver.config.data_dir import LOCK_NAME, VERSION_NAME, refuse_foreign_data, usable
from pushserver.config.embedded import FILE_NAME
from pushserver.start.release import version

READY_SECONDS = 60.0
POLL_SECONDS = 0.05
FIRST_REMINDER_SECONDS = 2.0
REMINDER_SECONDS = 10.0
# The processes that are not ready yet: their names, and their names in reminders.
Awaited = dict[str, str]


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


def run(plan: Plan, *, log: MergedLog, private_key: bytes) -> None:
    """Run the server until a signal, and return when everything has been stopped.

    Raises StartError when it cannot start.
    """
    if not is_free(plan.host, plan.port):
        raise StartError(f"port {plan.port} on {plan.host} is in use: set PORT to another one.")
    with Guard() as guard, _noted(settings.EMBEDDED, settings.DATA_DIR / FILE_NAME):
        asyncio.run(_run(plan, Supervisor(log, guard), private_key))


async def _run(plan: Plan, supervisor: Supervisor, private_key: bytes) -> None:
    signalled = _signals(supervisor)
    starting = asyncio.create_task(_start(plan, supervisor, private_key))
    waiting = asyncio.create_task(signalled.wait())
    replacing = asyncio.create_task(_replace_at_signal(plan, supervisor, starting))
    try:
        await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not signalled.is_set():
            starting.result()  # raises the error of the start
            await waiting
    finally:
        for task in (starting, waiting, replacing):
            task.cancel()
        supervisor.print_line("Stopping.")
        await supervisor.stop()
        supervisor.print_line("Stopped.")


def _signals(supervisor: Supervisor) -> asyncio.Event:
    """Return an event that the first signal sets, for an orderly stop.

    A second signal stops without waiting for work in progress.
    """
    signalled = asyncio.Event()

    def stop() -> None:
        if signalled.is_set():
            supervisor.hurry()
        signalled.set()

    for number in (SIGINT, SIGTERM, SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    return signalled


async def _replace_at_signal(plan: Plan, supervisor: Supervisor, starting: "asyncio.Task[None]") -> None:
    """Replace all processes at every SIGUSR1. The new processes import the code anew, so it may be another version."""
    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(SIGUSR1, asked.set)
    await asyncio.wait({starting})
    while await asked.wait():
        asked.clear()
        try:
            await _replace_all(plan, supervisor)
        except StartError as error:
            supervisor.print_line(f"Not replaced: {error}.")


async def _replace_all(plan: Plan, supervisor: Supervisor) -> None:
    """Replace the processes one after the other. The embedded servers stay as they are."""
    supervisor.print_line("Replacing all processes but the embedded servers.")
    if await supervisor.run(replace(plan.database, target=None)) != 0:
        raise StartError("the database cannot be used; the message above says why")
    for spec in [*plan.services, plan.web]:
        await supervisor.replace(replace(spec, target=None))
    async with _reminders(supervisor) as awaited:
        await _wait_until_ready(plan, awaited)
    supervisor.print_line("Replaced.")


async def _start(plan: Plan, supervisor: Supervisor, private_key: bytes) -> None:
    """Start all processes without dependencies at once. Meanwhile import the modules that the others will share."""
    embedded = [part.spec for part in plan.embedded]
    supervisor.print_line(f"Starting {', '.join(spec.name for spec in [*embedded, plan.web, *plan.services])}.")
    async with _reminders(supervisor) as awaited:
        await asyncio.gather(*[supervisor.start(spec) for spec in embedded])
        preload()
        await supervisor.start(plan.web)
        async with asyncio.TaskGroup() as group:
            for part in plan.embedded:
                group.create_task(_wait_for(part, awaited))
            group.create_task(_prepare_database(plan.database, supervisor, awaited))
        for spec in plan.services:
            await supervisor.start(spec)
        await _wait_until_ready(plan, awaited)
    for line in _summary(plan.url, private_key, plan.embedded):
        supervisor.print_line(line)
    for line in plan.notes:
        supervisor.print_line(line)


@asynccontextmanager
async def _reminders(supervisor: Supervisor) -> AsyncIterator[Awaited]:
    """Print after a moment, and then from time to time, what the start still waits for."""
    awaited: Awaited = {}

    async def remind() -> None:
        await asyncio.sleep(FIRST_REMINDER_SECONDS)
        while True:
            supervisor.print_line(f"Waiting for {', '.join(awaited.values()) or 'what was started'}.")
            await asyncio.sleep(REMINDER_SECONDS)

    reminding = asyncio.create_task(remind())
    try:
        yield awaited
    finally:
        reminding.cancel()


async def _wait_for(part: EmbeddedPart, awaited: Awaited) -> None:
    name = awaited[part.spec.name] = part.spec.name
    try:
        async with asyncio.timeout(READY_SECONDS):
            while not await part.is_ready():  # noqa: ASYNC110 - another process tells no event
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise StartError(f"{name} is not ready after {READY_SECONDS:g} s; its messages are above.") from None
    del awaited[name]


async def _prepare_database(spec: ProcessSpec, supervisor: Supervisor, awaited: Awaited) -> None:
    awaited[spec.name] = "the database to be up to date"
    if await supervisor.run(spec) != 0:
        raise StartError("the database cannot be used; the message above says why.")
    del awaited[spec.name]


async def _wait_until_ready(plan: Plan, awaited: Awaited) -> None:
    url = f"{plan.url}/readyz"
    status = 0
    while status != HTTPStatus.OK:
        await asyncio.sleep(POLL_SECONDS)
        status, body = await fetch(url)
        awaited["web"] = f"{url}: {_reasons(body)}" if status else "the web server"


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
