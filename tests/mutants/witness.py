"""Pytest plugin that records setup errors in the file BROKEN, for runs with and without a mutant.

When the servers of conftest.py do not start, every mutant would count as killed. The recorded errors void the figures.
"""

import os
from pathlib import Path

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and report.when == "setup" and "conftest.py" in report.longreprtext:
        with Path(os.environ["BROKEN"]).open("a") as broken:
            broken.write(f"{os.environ.get('MUTANT_UNDER_TEST')} {report.nodeid}\n{report.longreprtext}\n")
