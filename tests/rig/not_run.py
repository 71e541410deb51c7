"""Pytest plugin that lists the skipped tests at the end of a run.

It prints one line for each reason, with the number of tests; `-q` does not hide it. With REQUIRE_ALL=1 (CI) a run fails
unless the reasons are exactly the lines of EXPECTED_SKIPS, however the tests were skipped. A named skip that did not
happen means that something was not hidden from the run.
"""

import os
from collections import Counter
from typing import Any

import pytest


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
