"""Pytest plugin of the suite: which process runs which tests (`pytest -n 2`), and the list of skipped tests at the end.

The tests of a file stay together and in their order. So do the tests of several files that share something slow to
start. The longest tests come first, so that no process still works for minutes when the others are done.

The list has one line for each reason, with the number of tests; `-q` does not hide it. With REQUIRE_ALL=1 (CI) a run
fails unless the reasons are exactly the lines of EXPECTED_SKIPS, however the tests were skipped. A named skip that did
not happen means that something was not hidden from the run.
"""

import os
from collections import Counter
from itertools import zip_longest
from typing import Any

import pytest
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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    config.option.loadscopereorder = False  # xdist would sort by number of tests, and our longest files have few
    return Scheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests so that tests with a common server follow each other, also in a single process."""
    items.sort(key=lambda item: order(item.nodeid))


def order(nodeid: str) -> tuple[int, str]:
    """Return a sort key that puts slow tests first, and tests of a group beside each other. The longest matching prefix
    in LONGEST_FIRST decides.
    """
    found = [start for start in LONGEST_FIRST if nodeid.startswith(start)]
    return LONGEST_FIRST.index(max(found, key=len)) if found else len(LONGEST_FIRST), group(nodeid)


# Skipped tests --------------------------------------------------------------------------------------------------------
def skipped(config: pytest.Config) -> Counter[str]:
    """Count the skipped tests by reason. Workers of pytest-xdist count none: they send their reports to the main
    process.
    """
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if reporter else []
    return Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the list."""
    reasons = skipped(config)
    if reasons or _surprise(config):
        terminalreporter.section("not run")
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count} {'test' if count == 1 else 'tests'} not run: {reason}")
    if surprise := _surprise(config):
        terminalreporter.write_line(surprise, red=True)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Turn success into failure when everything else was required."""
    if exitstatus == pytest.ExitCode.OK and _surprise(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _surprise(config: pytest.Config) -> str:
    """Return why the skips are a failure, or an empty text."""
    if os.environ.get("REQUIRE_ALL") != "1" or hasattr(config, "workerinput"):
        return ""
    expected, found = set(os.environ.get("EXPECTED_SKIPS", "").splitlines()), set(skipped(config))
    if found - expected:
        return "REQUIRE_ALL=1, so that this is a failure."
    missing = ", ".join(sorted(expected - found))
    return f"EXPECTED_SKIPS, but all tests ran: {missing}" if missing else ""
