"""Supervised processes, described as plain data. The module has no running process."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from signal import SIGTERM, Signals
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]


class StopOrder(IntEnum):
    """The order in which processes are stopped: lower ones first, and those of equal order together."""

    FRONT = 0  # web, bridge, clients: no new work comes in
    WORKER = 1  # work in progress is finished
    PEER = 2  # Waku node, gorush
    BROKER = 3
    DATABASE = 4


@dataclass(frozen=True, slots=True)
class Account:
    """The account of a process, by its numbers."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """One process. ``command`` starts the same process from a shell.

    Where there is a ``target``, a supervisor runs it instead of the command, in a forked child. It does the same, and
    the modules that the supervisor has imported are loaded already.
    """

    name: str
    command: Sequence[str]
    stop_order: StopOrder
    target: Callable[[], object] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)  # added to ours
    folder: Path | None = None
    account: Account | None = None
    stop_signal: Signals = SIGTERM
    stop_seconds: float = 10.0
    announces_ready: bool = False  # by kit.processes, so a replacement may start beside it until then
    prepare: Callable[[], None] = lambda: None  # runs in the child before each start, also before a restart

    def arguments(self) -> dict[str, Any]:
        """Return keyword arguments for subprocess.

        The process gets its own session. So Ctrl-C reaches only the supervisor, and the whole group can be killed.
        """
        return {
            "env": {**os.environ, **self.environment},
            "cwd": self.folder,
            "start_new_session": True,
            **self.identity(),
        }

    def identity(self) -> dict[str, Any]:
        """Return the keyword arguments for subprocess that set the account."""
        if self.account is None:
            return {}
        return {"user": self.account.uid, "group": self.account.gid, "extra_groups": []}


def python(name: str, *arguments: str, stop_order: StopOrder, stop_seconds: float = 10.0) -> ProcessSpec:
    """Describe a process of this interpreter that finds our packages from any folder."""
    search_path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    return ProcessSpec(
        name=name,
        command=[sys.executable, *arguments],
        stop_order=stop_order,
        environment={"PYTHONPATH": search_path, "PYTHONUNBUFFERED": "1"},
        stop_seconds=stop_seconds,
    )
