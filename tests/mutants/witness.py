"""What a run without a mutant and a run with one have in common: the servers that conftest.py starts.

Where these do not start, every mutant would count as killed. So it is written down, and the figures are thrown away.
"""

import os
from pathlib import Path

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and report.when == "setup" and "conftest.py" in report.longreprtext:
        with Path(os.environ["BROKEN"]).open("a") as broken:
            broken.write(f"{os.environ.get('MUTANT_UNDER_TEST')} {report.nodeid}\n{report.longreprtext}\n")
