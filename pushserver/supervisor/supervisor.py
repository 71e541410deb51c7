"""Starts processes, starts them again when they die, and stops them in order, leaving nothing behind.

A process here is a whole process group: when its leader is gone, for whatever reason, the rest of the group is killed.
"""

import asyncio
import os
import time
from dataclasses import dataclass
from signal import SIGKILL, Signals

from pushserver.supervisor.guard import Guard, kill_group
from pushserver.supervisor.output import Lines, MergedLog
from pushserver.supervisor.processes import ProcessSpec, Stage, StartError

OWN_NAME = "up"
FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 30.0
HEALTHY_SECONDS = 30.0


def restart_delay_seconds(failures: int) -> float:
    """How long to wait after ``failures`` short lives in a row: 0.5 s, doubled each time, at most 30 s."""
    return min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(failures - 1, 10))


def failures_in_a_row(before: int, lived_seconds: float) -> int:
    """A process that was healthy for a while starts its record anew."""
    return 1 if lived_seconds >= HEALTHY_SECONDS else before + 1


@dataclass(slots=True)
class Child:
    """A running process and since when."""

    spec: ProcessSpec
    process: asyncio.subprocess.Process
    started_at: float  # of time.monotonic


class Supervisor:
    def __init__(self, log: MergedLog, guard: Guard) -> None:
        self._log = log
        self._guard = guard
        self._children: dict[str, Child] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()

    def say(self, text: str) -> None:
        self._log.write(OWN_NAME, text)

    async def start(self, spec: ProcessSpec) -> None:
        """Start it and keep it running until `stop`. Raises StartError when the first start is impossible."""
        child = await self._launch(spec)
        self._keepers.append(asyncio.create_task(self._keep(child)))

    async def run(self, spec: ProcessSpec) -> int:
        """Run it once, to its end. Returns its exit code."""
        return await self._end_of(await self._launch(spec))

    async def stop(self) -> None:
        """Stop stage by stage. Returns when no process is left."""
        self._stopping.set()
        for stage in Stage:
            await asyncio.gather(*[self._stop(child) for child in self._of(stage)])
        await asyncio.gather(*self._keepers)

    def hurry(self) -> None:
        """Do not wait for work in progress any longer. The servers that hold data still get their time."""
        self._hurried.set()

    def _of(self, stage: Stage) -> list[Child]:
        return [child for child in self._children.values() if child.spec.stage is stage]

    async def _launch(self, spec: ProcessSpec) -> Child:
        try:
            await asyncio.to_thread(spec.prepare)
            process = await self._spawn(spec)
        except OSError as exc:
            raise StartError(f"{spec.name} cannot be started: {exc}") from exc
        self._guard.watch(process.pid, spec.stop_signal)
        child = Child(spec, process, time.monotonic())
        self._children[spec.name] = child
        if self._stopping.is_set():  # the stop came while it was being started
            await self._stop(child)
        return child

    async def _spawn(self, spec: ProcessSpec) -> asyncio.subprocess.Process:
        """With a pipe of our own: a grandchild that keeps it open must not hide that the process has ended."""
        reading, writing = os.pipe()
        lines = Lines(lambda line: self._log.write(spec.name, line))
        await asyncio.get_running_loop().connect_read_pipe(lambda: lines, os.fdopen(reading, "rb", buffering=0))
        try:
            return await asyncio.create_subprocess_exec(
                *spec.command, stdin=asyncio.subprocess.DEVNULL, stdout=writing, stderr=writing, **spec.arguments()
            )
        finally:
            os.close(writing)

    async def _end_of(self, child: Child) -> int:
        code = await child.process.wait()
        kill_group(child.process.pid, SIGKILL)
        self._guard.forget(child.process.pid)
        if self._children.get(child.spec.name) is child:
            del self._children[child.spec.name]
        return code

    async def _keep(self, first: Child) -> None:
        failures = 0
        child: Child | None = first
        while child is not None:
            code = await self._end_of(child)
            failures = failures_in_a_row(failures, time.monotonic() - child.started_at)
            child = await self._start_again(first.spec, describe_exit(code), failures)

    async def _start_again(self, spec: ProcessSpec, reason: str, failures: int) -> Child | None:
        """The next life of a process that ended, or None when everything is being stopped."""
        while not self._stopping.is_set():
            delay = restart_delay_seconds(failures)
            self.say(f"{spec.name} {reason}, starting it again in {delay:g} s")
            if await _happens_within(self._stopping, delay):
                break
            try:
                return await self._launch(spec)
            except StartError as exc:
                reason, failures = f"cannot be started ({exc})", failures + 1
        return None

    async def _stop(self, child: Child) -> None:
        """Ask the leader of the group; kill the whole group when the time is up."""
        if child.process.returncode is None:
            child.process.send_signal(child.spec.stop_signal)
        if not await self._ends_in_time(child):
            self.say(f"{child.spec.name} did not stop in time and is killed")
        kill_group(child.process.pid, SIGKILL)
        await child.process.wait()

    async def _ends_in_time(self, child: Child) -> bool:
        ended = asyncio.create_task(child.process.wait())
        hurried = asyncio.create_task(self._hurried.wait())
        awaited = {ended} if child.spec.stage >= Stage.BROKER else {ended, hurried}
        await asyncio.wait(awaited, timeout=child.spec.stop_seconds, return_when=asyncio.FIRST_COMPLETED)
        in_time = ended.done()
        ended.cancel()
        hurried.cancel()
        return in_time


async def _happens_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


def describe_exit(code: int) -> str:
    return f"ended with code {code}" if code >= 0 else f"was ended by {Signals(-code).name}"
