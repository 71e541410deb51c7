"""The guard, which stops the children when their supervisor is killed.

A process that gets SIGKILL cannot clean up. So a second, tiny process holds the other end of a pipe and the ids of all
process groups. When the pipe ends, it stops the groups that are left. This also stops grandchildren (workers of a pool,
Java), which a death signal to the direct children would miss.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from signal import SIG_IGN, SIGHUP, SIGINT, SIGKILL, SIGTERM, Signals, signal
from types import TracebackType
from typing import IO, Self

GRACE_SECONDS = 10.0


class Guard:
    """A context in which children are started. Leaving it stops the groups that are left."""

    def __init__(self, *, grace_seconds: float = GRACE_SECONDS) -> None:
        self._command = [sys.executable, "-I", "-S", str(Path(__file__)), str(grace_seconds)]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            start_new_session=True,
            text=True,
            bufsize=1,
        )
        return self

    def __exit__(self, _type: type[BaseException] | None, _e: BaseException | None, _tb: TracebackType | None) -> None:
        self._send("")
        with suppress(BrokenPipeError):
            self._pipe.close()
        self._process.wait()

    def watch(self, group: int, stop_signal: Signals) -> None:
        """Have the group stopped with ``stop_signal`` when the supervisor ends."""
        self._send(f"{group} {int(stop_signal)}\n")

    def forget(self, group: int) -> None:
        """Do not stop the group any more."""
        self._send(f"{group} 0\n")

    @property
    def _pipe(self) -> IO[str]:
        assert self._process.stdin is not None  # noqa: S101 - it was opened as a pipe
        return self._process.stdin

    def _send(self, line: str) -> None:
        with suppress(BrokenPipeError):  # another process killed the guard; that must not end the children
            self._pipe.write(line)
            self._pipe.flush()


def main(lines: Iterable[str], grace_seconds: float) -> None:
    """Run the guard: read which groups to watch or forget until the pipe ends, then stop those that are left."""
    for number in (SIGINT, SIGTERM, SIGHUP):
        signal(number, SIG_IGN)  # the guard ends when the pipe ends
    groups: dict[int, int] = {}
    for line in lines:
        group, stop_signal = map(int, line.split())
        groups[group] = stop_signal
        if not stop_signal:
            del groups[group]
    _stop(groups, grace_seconds)


def _stop(groups: dict[int, int], grace_seconds: float) -> None:
    alive = [group for group, stop_signal in groups.items() if kill_group(group, stop_signal)]
    deadline = time.monotonic() + grace_seconds
    while alive and time.monotonic() < deadline:
        time.sleep(0.05)
        alive = [group for group in alive if kill_group(group, 0)]
    for group in alive:
        kill_group(group, SIGKILL)


def kill_group(group: int, number: int) -> bool:
    """Send a signal to a process group and return whether the group still has a process."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # permission: another group has the number now
        return False
    return True


if __name__ == "__main__":
    main(sys.stdin, float(sys.argv[1]))
