"""The supervisor: it starts processes, restarts them when they die, and stops them in order, leaving nothing behind.

A process here is a whole process group: when its leader ends, for any reason, the rest of the group is killed. The
supervisor has a single thread, because only such a process can fork children. Slow work is done in a child.
"""

import asyncio
import os
import time
from dataclasses import replace
from signal import SIGKILL, Signals
from typing import Any, BinaryIO

from embedded.supervisor.child import Child, fork
from embedded.supervisor.guard import Guard, kill_group
from embedded.supervisor.output import Lines, MergedLog, StartStatus
from embedded.supervisor.processes import ProcessSpec, StopOrder
from kit.processes import StartError

OWN_NAME = "up"
FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 30.0
HEALTHY_SECONDS = 30.0
READY_SECONDS = 60.0
# Time to wait for the last output of an ended process: a process outside its group may hold the pipe open.
LAST_OUTPUT_SECONDS = 1.0


def restart_delay_seconds(failures: int) -> float:
    """Return the pause after ``failures`` short lives in a row: 0.5 s, doubled each time, at most 30 s."""
    return min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(failures - 1, 10))


def failures_in_a_row(before: int, lived_seconds: float) -> int:
    """Return the failures in a row including this one. A life of `HEALTHY_SECONDS` restarts the count."""
    return 1 if lived_seconds >= HEALTHY_SECONDS else before + 1


class Supervisor:
    """A supervisor, which keeps the processes that it started running until `stop`."""

    def __init__(self, log: MergedLog, guard: Guard) -> None:
        self._log = log
        self._guard = guard
        self._children: list[Child] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._kept: dict[str, ProcessSpec] = {}  # by name: the processes that are restarted when they end
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()

    def print_line(self, text: str) -> None:
        """Write a line of the supervisor itself into the log."""
        self._log.write(OWN_NAME, text)

    async def start(self, spec: ProcessSpec) -> None:
        """Start a process and keep it running until `stop`. Raises StartError when the first start is impossible."""
        spec = self._kept[spec.name] = _alone(spec)
        self._keepers.append(asyncio.create_task(self._keep(await self._launch(spec))))

    async def replace(self, spec: ProcessSpec) -> None:
        """Start a process in place of the one with the same name.

        A process that announces its readiness is started beside the old one. The old one is stopped only when the new
        one is ready, so that one is always running. Raises StartError and keeps the old one when the new one cannot be
        started.
        """
        if not spec.announces_ready:
            self._kept[spec.name] = spec  # also for an old one that is about to be restarted
            await self._dismiss(self._named(spec.name))
            await self.start(spec)
            return
        new = await self._launch(spec)
        new.spec = self._kept[spec.name] = _alone(spec)
        self._keepers.append(asyncio.create_task(self._keep(new)))
        await self._dismiss([child for child in self._named(spec.name) if child is not new])

    async def _dismiss(self, children: list[Child]) -> None:
        for child in children:
            child.is_replaced = True
        await asyncio.gather(*map(self._stop, children))

    def _named(self, name: str) -> list[Child]:
        return [child for child in self._children if child.spec.name == name]

    async def run(self, spec: ProcessSpec) -> int:
        """Run a process once, to its end, and return its exit code."""
        return await self._end_of(await self._launch(spec))

    async def stop(self) -> None:
        """Stop all processes in the order of `StopOrder`. Return when no process is left."""
        self._stopping.set()
        for stop_order in StopOrder:
            await asyncio.gather(*[self._stop(child) for child in self._of(stop_order)])
        await asyncio.gather(*self._keepers)

    def hurry(self) -> None:
        """Stop waiting for work in progress. The servers that hold data still get their time."""
        self._hurried.set()

    def _of(self, stop_order: StopOrder) -> list[Child]:
        return [child for child in self._children if child.spec.stop_order is stop_order]

    async def _launch(self, spec: ProcessSpec) -> Child:
        start = StartStatus()
        # The pipe is our own: a grandchild that keeps it open must not hide that the process has ended.
        lines = Lines(lambda line: self._log.write(spec.name, line))
        output = await _pipe_to(lines)
        with output, await _pipe_to(start) as status:
            try:
                child = fork(spec, output.fileno(), status.fileno())
            except OSError as exc:
                raise StartError(f"{spec.name} cannot be started: {exc}") from exc
            child.has_ended_output = lines.ended
            self._children.append(child)
        self._guard.watch(child.pid, spec.stop_signal)
        first_line = await self._first_line(child, start)
        if first_line not in {"", "\0"}:
            child.is_replaced = True
            await self._stop(child)
            await self._end_of(child)
            raise StartError(first_line)
        if self._stopping.is_set():  # the stop came during the start
            await self._stop(child)
        return child

    async def _first_line(self, child: Child, start: StartStatus) -> str:
        """Return the error before the child ran or was ready. A zero byte or no text means that there was none."""
        try:
            async with asyncio.timeout(READY_SECONDS if child.spec.announces_ready else None):
                first_line = await start.complete
        except TimeoutError:
            return f"{child.spec.name} was not ready within {READY_SECONDS:g} s"
        return (
            f"{child.spec.name} ended before it was ready"
            if child.spec.announces_ready and not first_line
            else first_line
        )

    async def _end_of(self, child: Child) -> int:
        code = await asyncio.shield(child.ended)
        kill_group(child.pid, SIGKILL)
        self._guard.forget(child.pid)
        if child in self._children:
            self._children.remove(child)
        await _happens_within(child.has_ended_output, LAST_OUTPUT_SECONDS)
        return code

    async def _keep(self, first: Child) -> None:
        failures = 0
        child: Child | None = first
        while child is not None:
            code = await self._end_of(child)
            if child.is_replaced:
                return
            failures = failures_in_a_row(failures, time.monotonic() - child.started_at)
            child = await self._start_again(first.spec, describe_exit(code), failures)

    async def _start_again(self, spec: ProcessSpec, reason: str, failures: int) -> Child | None:
        """Restart a process after a delay, and return its new child.

        Return None when another process has replaced it, or when everything is being stopped.
        """
        while not self._stopping.is_set():
            delay = restart_delay_seconds(failures)
            self.print_line(f"{spec.name} {reason}, starting it again in {delay:g} s")
            if await _happens_within(self._stopping, delay) or self._kept[spec.name] is not spec:
                break
            try:
                child = await self._launch(spec)
            except StartError as exc:
                reason = f"cannot be started ({exc})"
                failures += 1
            else:
                child.is_replaced = self._kept[spec.name] is not spec  # replaced during the start
                if child.is_replaced:
                    await self._stop(child)
                return child
        return None

    async def _stop(self, child: Child) -> None:
        """Signal the leader of the group to stop, and kill the whole group when its time is up."""
        child.send(child.spec.stop_signal)
        if not await self._ends_in_time(child):
            self.print_line(f"{child.spec.name} did not stop in time and is killed")
        kill_group(child.pid, SIGKILL)
        await asyncio.shield(child.ended)

    async def _ends_in_time(self, child: Child) -> bool:
        hurried = asyncio.create_task(self._hurried.wait())
        awaited: list[asyncio.Future[Any]] = [child.ended]
        if child.spec.stop_order < StopOrder.BROKER:
            awaited.append(hurried)
        await asyncio.wait(awaited, timeout=child.spec.stop_seconds, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        return child.ended.done()


def _alone(spec: ProcessSpec) -> ProcessSpec:
    """Return the spec of a process that does not announce its readiness, because nothing waits for it."""
    return replace(spec, announces_ready=False)


async def _pipe_to(protocol: asyncio.BaseProtocol) -> BinaryIO:
    """Return the writing end of a pipe that ``protocol`` reads."""
    reading, writing = os.pipe()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: protocol, os.fdopen(reading, "rb", buffering=0))
    return os.fdopen(writing, "wb")


async def _happens_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


def describe_exit(code: int) -> str:
    """Return in words how a process ended."""
    return f"ended with code {code}" if code >= 0 else f"was ended by {Signals(-code).name}"
