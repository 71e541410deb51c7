"""How many files one request enters: from the bridge's read to the published reply, call by call.

The bridge's reader and a worker run in this process, on a real PostgreSQL, Valkey, node and gorush. While the request
is on its way, each call of a function counts the file that it stands in, also what is called with nothing to do. Run
alone with ``python -m bench files``.
"""

import os
import tempfile
import threading
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.table import Table

from bench import servers
from bench.path import TOPIC, servers_of_one_process

ROOT = f"{Path(__file__).parent.parent}/"
NOT_OURS = ("bench/", ".venv/")
GOAL = 56


class Followed:
    """The functions that were called while ``is_on``, by their files."""

    def __init__(self) -> None:
        self.functions: dict[str, set[str]] = defaultdict(set)
        self.is_on = False

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Take note of a call, as `threading.setprofile` tells it."""
        code = frame.f_code
        if self.is_on and event == "call" and code.co_filename.startswith(ROOT) and code.co_name != "<module>":
            name = code.co_filename.removeprefix(ROOT)
            if not name.startswith(NOT_OURS):
                self.functions[name].add(code.co_name)


def run() -> dict[str, object]:
    """Follow one request, print and return the files that it enters."""
    followed = Followed()
    threading.setprofile(followed)  # not this thread, which only waits for the reply
    with tempfile.TemporaryDirectory(prefix="bench-") as name, ExitStack() as stack:
        os.environ["REDIS_URL"] = stack.enter_context(servers.valkey(Path(name)))
        postgres = stack.enter_context(servers_of_one_process())
        from bench.request_way import RequestWay  # noqa: PLC0415 - it imports models, so after Django is set up

        with RequestWay(postgres, TOPIC) as way:
            way.warm_up()
            followed.is_on = True
            way.go()
            followed.is_on = False
    _print(followed)
    return {"files": len(followed.functions), "names": sorted(followed.functions)}


def _print(followed: Followed) -> None:
    table = Table(title=f"One request enters {len(followed.functions)} files (goal: {GOAL})")
    table.add_column("file")
    table.add_column("functions")
    for name, functions in sorted(followed.functions.items()):
        table.add_row(name, ", ".join(sorted(functions)))
    Console().print(table)
