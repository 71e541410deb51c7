"""From nothing to a running server and back: what starts after what, and what a signal does."""

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM

from pushserver.embedded.parts import EmbeddedPart, answers
from pushserver.embedded.ports import is_free
from pushserver.stack.plan import Plan, manage
from pushserver.stack.summary import summary
from pushserver.supervisor.guard import Guard
from pushserver.supervisor.output import MergedLog
from pushserver.supervisor.processes import Stage, StartError
from pushserver.supervisor.supervisor import Supervisor

READY_SECONDS = 60.0
REMINDER_SECONDS = 30.0


def run(plan: Plan, *, log: MergedLog, embedded_file: Path, private_key: bytes) -> None:
    """Returns after a signal, when everything has been stopped. Raises StartError when it cannot start."""
    if not is_free(plan.host, plan.port):
        raise StartError(f"port {plan.port} on {plan.host} is in use: set PORT to another one.")
    with Guard() as guard, _noted(plan.embedded, embedded_file):
        asyncio.run(_run(plan, Supervisor(log, guard), private_key))


async def _run(plan: Plan, supervisor: Supervisor, private_key: bytes) -> None:
    signalled = _signals(supervisor)
    starting = asyncio.create_task(_start(plan, supervisor, private_key))
    waiting = asyncio.create_task(signalled.wait())
    try:
        await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not signalled.is_set():
            starting.result()  # raises what went wrong
            await waiting
    finally:
        starting.cancel()
        waiting.cancel()
        supervisor.say("Stopping.")
        await supervisor.stop()
        supervisor.say("Stopped.")


def _signals(supervisor: Supervisor) -> asyncio.Event:
    """The first signal stops in order, a second one does not wait for work in progress."""
    signalled = asyncio.Event()

    def stop() -> None:
        if signalled.is_set():
            supervisor.hurry()
        signalled.set()

    for number in (SIGINT, SIGTERM, SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    return signalled


async def _start(plan: Plan, supervisor: Supervisor, private_key: bytes) -> None:
    await _start_database(plan, supervisor)
    for spec in plan.services:
        await supervisor.start(spec)
    await _run_once(supervisor, "admin", "first_admin")
    await _report_readiness(plan, supervisor)
    for line in summary(plan.url, private_key, plan.embedded):
        supervisor.say(line)


async def _start_database(plan: Plan, supervisor: Supervisor) -> None:
    """The embedded parts all at once; the migrations as soon as the database is there."""
    async with asyncio.TaskGroup() as group:
        parts = {part.variable: group.create_task(_start_part(part, supervisor)) for part in plan.embedded}
        if "DATABASE_URL" in parts:
            await parts["DATABASE_URL"]
        await _run_once(supervisor, "migrate", "migrate", "--no-input")


async def _start_part(part: EmbeddedPart, supervisor: Supervisor) -> None:
    await supervisor.start(part.spec)
    if not await _becomes_true(part.is_ready, READY_SECONDS):
        raise StartError(f"{part.spec.name} is not ready after {READY_SECONDS:g} s; its messages are above.")


async def _run_once(supervisor: Supervisor, name: str, *arguments: str) -> None:
    if await supervisor.run(manage(name, *arguments, stage=Stage.WORKER)) != 0:
        raise StartError(f"`manage.py {' '.join(arguments)}` failed; its messages are above.")


async def _report_readiness(plan: Plan, supervisor: Supervisor) -> None:
    while not await _becomes_true(lambda: answers(f"{plan.url}/readyz"), REMINDER_SECONDS):
        supervisor.say(f"Not ready yet: {plan.url}/readyz says why.")


async def _becomes_true(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = asyncio.get_running_loop().time() + seconds
    while not await asyncio.to_thread(condition):
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True


@contextmanager
def _noted(parts: Sequence[EmbeddedPart], file: Path) -> Iterator[None]:
    """Where the embedded servers listen, for the settings of every other process. Holds a password: mode 600."""
    draft = file.with_name(f"{file.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
        json.dump({part.variable: part.url for part in parts}, stream, indent=1)
    draft.replace(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
