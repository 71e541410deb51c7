"""Pytest plugin that lists the skipped tests at the end of a run.

It prints one line for each reason, with the number of tests; `-q` does not hide it. With REQUIRE_ALL=1 (CI) a run that
skipped anything fails, however the test was skipped.
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
    if not reasons:
        return
    terminalreporter.section("not run")
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count} {'test' if count == 1 else 'tests'} not run: {reason}")
    if _is_all_required():
        terminalreporter.write_line("REQUIRE_ALL=1, so that this is a failure.", red=True)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Turn success into failure when everything was required."""
    if exitstatus == pytest.ExitCode.OK and _is_all_required() and skipped(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _is_all_required() -> bool:
    return os.environ.get("REQUIRE_ALL") == "1"
