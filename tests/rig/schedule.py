"""Distribution of the tests over the processes of a run (`pytest -n 2`).

The tests of a file stay together and in their order. So do the tests of several files that share something slow to
start. The longest tests come first, so that no process still works for minutes when the others are done.
"""

from itertools import zip_longest
from typing import Any

from xdist.scheduler import LoadScopeScheduling

# Flow tests that share a whole server. There are two, so that two processes of a run work through them.
SERVERS = {
    "first server": ("batches", "canary", "metrics"),
    "second server": ("clients", "commands", "notifying"),
}
# Files by the slow resource that they share: a whole server, a Spark session, development servers.
TOGETHER = {
    **{f"tests/flows/test_{name}.py": server for server, names in SERVERS.items() for name in names},
    **{f"spark_reports/tests/test_{name}.py": "spark session" for name in ("survival", "transforms")},
    "tests/interop/": "tests/interop/",
}
# Tests that start the browser.
BROWSER = tuple(f"tests/console/test_{name}.py" for name in ("look", "journeys"))
# Tests that mostly wait for servers. Spark and browser tests keep a core busy, so the two kinds run beside each other.
WAITING = ("kit/processes/tests/test_leader.py", "embedded/servers/tests/test_system_postgres.py")
LONGEST_FIRST = (
    "tests/console/test_staged_faults.py",
    "tests/flows/",
    "spark_reports/tests/test_places.py",
    "spark_reports/tests/test_runs.py",
    "tests/test_up.py",
    "spark_reports/",
    *(file for pair in zip_longest(BROWSER, WAITING) for file in pair if file),
    "tests/console/test_bad_input.py",
    "tests/console/test_pages.py",
    "tests/console/",
    "tests/",
)


def group(nodeid: str) -> str:
    """Return the name of the group of tests that must run in one process with this test."""
    file, *_ = nodeid.split("::")
    return next((name for start, name in TOGETHER.items() if file.startswith(start)), file)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def scheduler(config: Any, log: Any) -> Scheduling:
    config.option.loadscopereorder = False  # xdist would sort by number of tests, and our longest files have few
    return Scheduling(config, log)


def order(nodeid: str) -> tuple[int, str]:
    """Return a sort key that puts slow tests first, and tests of a group beside each other. The longest matching prefix
    in LONGEST_FIRST decides.
    """
    found = [start for start in LONGEST_FIRST if nodeid.startswith(start)]
    return LONGEST_FIRST.index(max(found, key=len)) if found else len(LONGEST_FIRST), group(nodeid)
