"""Benchmark of the files that one request enters, from the bridge's read to the published reply, call by call.

The bridge's reader and a worker run in this process, with PostgreSQL, Valkey, a node and a gorush. While a request is
on its way, each call of a function counts the file of that function, also when it finds nothing to do. Several requests
go one after the other. Timers (refreshes every few seconds, the time of the last read) call further files during some
of them only. Run alone with ``python -m bench files``.
"""

import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.table import Table

from bench.request.path import servers_of_one_process
from bench.running import servers

ROOT = f"{Path(__file__).parents[2]}/"
NOT_OURS = ("bench/", ".venv/")
GOAL = 56
REQUESTS = 12


class Followed:
    """The files of the functions called while ``is_on``."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self.is_on = False

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Note a call. `threading.setprofile` calls this."""
        code = frame.f_code
        if self.is_on and event == "call" and code.co_filename.startswith(ROOT) and code.co_name != "<module>":
            self._files.add(code.co_filename.removeprefix(ROOT))

    def during(self, work: Callable[[], None]) -> set[str]:
        """Return our files that are entered during this work."""
        self._files, self.is_on = set(), True
        work()
        self.is_on = False
        return {name for name in self._files if not name.startswith(NOT_OURS)}


def run() -> dict[str, object]:
    """Follow requests, print and return the files that they enter."""
    followed = Followed()
    threading.setprofile(followed)  # not this thread, which only waits for the replies
    with tempfile.TemporaryDirectory(prefix="bench-") as name, ExitStack() as stack:
        os.environ["REDIS_URL"] = stack.enter_context(servers.valkey(Path(name)))
        postgres = stack.enter_context(servers_of_one_process())
        from bench.request.request_way import RequestWay  # noqa: PLC0415 - it imports models, so after Django is set up

        with RequestWay(postgres, requests=REQUESTS) as way:
            entered = [followed.during(way.go) for _ in range(REQUESTS)]
    each, any_ = sorted(set.intersection(*entered)), sorted(set.union(*entered))
    _print(each, any_)
    return {"each": each, "any": any_}


def _print(each: Sequence[str], any_: Sequence[str]) -> None:
    table = Table(title=f"Each request enters {len(each)} files (goal: {GOAL}), {len(any_)} with what timers call")
    table.add_column("file")
    table.add_column("entered by")
    for name in any_:
        table.add_row(name, "each" if name in each else "some")
    Console().print(table)
