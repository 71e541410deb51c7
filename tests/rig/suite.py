"""Pytest plugin of the suite: which process runs which tests (`pytest -n 2`), and the list of skipped tests at the end.

The tests of a file stay together and in their order. So do the tests of several files that share something slow to
start. The longest tests come first, so that no process still works for minutes when the others are done.

The list has one line for each reason, with the number of tests; `-q` does not hide it. With REQUIRE_ALL=1 (CI) a run
fails unless the reasons are exactly the lines of EXPECTED_SKIPS, however the tests were skipped. A named skip that did
not happen means that something was not hidden from the run.
"""

import os
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import chain, zip_longest
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# Flow tests that share a whole server. There are two, so that two processes of a run work through them.
SERVERS = {
    "first server": ("batches", "canary", "metrics"),
    "second server": ("clients", "commands", "notifying"),
}
# Tests of reports that share a Spark session.
SPARK_SESSION = ("faults", "made_up", "survival", "transforms")
# Files by the slow resource that they share.
TOGETHER = {
    **{f"tests/flows/test_{name}.py": server for server, names in SERVERS.items() for name in names},
    **{f"spark_reports/tests/test_{name}.py": "spark session" for name in SPARK_SESSION},
    "tests/interop/": "tests/interop/",
}
# Tests that mostly wait for servers, the longest first.
WAITING = (
    "tests/console/test_staged_faults.py",
    "first server",
    "tests/test_up.py",
    "second server",
    "tests/drills/",
    "tests/first_contact/",
    "tests/test_machine.py",
    "tests/flows/test_silence.py",
    "embedded/servers/",
    "kit/processes/tests/test_leader.py",
    "embedded/",
)
# Of the others, which keep a core busy, those that take long.
BUSY = (
    "spark_reports/tests/test_places.py",
    "spark session",
    "tests/flows/test_half_working.py",
    "spark_reports/tests/test_runs.py",
    "tests/flows/test_privacy.py",
    "tests/console/test_look.py",
    "tests/console/test_journeys.py",
    "tests/flows/",
    "spark_reports/",
    "tests/test_recipes.py",
    "tests/console/test_bad_input.py",
    "tests/console/test_pages.py",
    "tests/console/",
    "tests/",
    "",
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
    """Sort the tests so that long ones come first, and that of three processes one waits while two work. Tests of a
    group follow each other, also in a single process.
    """
    groups = {group(item.nodeid) for item in items}
    waiting = {name for name in groups if name.startswith(WAITING)}
    busy = sorted(groups - waiting, key=partial(_rank, BUSY))
    mixed = chain.from_iterable(zip_longest(sorted(waiting, key=partial(_rank, WAITING)), busy[::2], busy[1::2]))
    places = {name: place for place, name in enumerate(mixed)}
    items.sort(key=lambda item: places[group(item.nodeid)])


def _rank(order: Sequence[str], name: str) -> tuple[int, str]:
    """Return a sort key by the longest beginning of a name in ``order``."""
    return order.index(max((start for start in order if name.startswith(start)), key=len)), name


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
    """Turn success into failure when everything else was required. `.ci/again` reads the reason from pytest's cache."""
    surprise, cache = _surprise(session.config), getattr(session.config, "cache", None)  # none with no:cacheprovider
    if exitstatus == pytest.ExitCode.OK and surprise:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if cache is not None and not hasattr(session.config, "workerinput"):
        cache.set("suite/surprise", surprise)


def _surprise(config: pytest.Config) -> str:
    """Return why the skips are a failure, or an empty text."""
    if os.environ.get("REQUIRE_ALL") != "1" or hasattr(config, "workerinput"):
        return ""
    expected, found = set(os.environ.get("EXPECTED_SKIPS", "").splitlines()), set(skipped(config))
    if found - expected:
        return "REQUIRE_ALL=1, so that this is a failure."
    missing = ", ".join(sorted(expected - found))
    return f"EXPECTED_SKIPS, but all tests ran: {missing}" if missing else ""
