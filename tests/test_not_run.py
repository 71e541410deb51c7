"""List of skipped tests at the end of a run: it is printed even by a quiet run, and REQUIRE_ALL=1 makes it a
failure.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from embedded.supervisor.processes import PROJECT

TESTS = """
import pytest


def test_runs() -> None: ...


@pytest.mark.parametrize("number", range(2))
def test_is_skipped(number) -> None:
    pytest.skip("only elsewhere")


def test_imports() -> None:
    pytest.importorskip("no_such_module")
"""
LISTED = [
    "1 test not run: could not import 'no_such_module': No module named 'no_such_module'",
    "2 tests not run: only elsewhere",
]
REQUIRED = "REQUIRE_ALL=1, so that this is a failure."
PLUGIN_ALONE = ("-c", os.devnull, "-p", "tests.rig.suite", "-p", "no:cacheprovider")


def run(folder: Path, *options: str, **environment: str) -> tuple[int, list[str]]:
    """Run the tests above. Return the exit code and the lines of the list."""
    file = folder / "test_parts.py"
    file.write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-qq", *options, str(file)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TESTS_RUN_DIR"))}
    for name in ("REQUIRE_ALL", "EXPECTED_SKIPS"):
        clean.pop(name, None)
    ended = subprocess.run(
        command, cwd=PROJECT, env=clean | environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert not ended.stderr
    lines = ended.stdout.splitlines()
    return ended.returncode, [line for line in lines if re.search(" not run: |REQUIRE_ALL|EXPECTED", line)]


ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
NAMED = [line.partition(" not run: ")[2] for line in LISTED]


@pytest.mark.parametrize(
    ("options", "environment", "expected"),
    [
        ((), {}, (0, LISTED)),
        ((), {"REQUIRE_ALL": "1", "EXPECTED_SKIPS": "\n".join(NAMED)}, (0, LISTED)),
        ((), {"REQUIRE_ALL": "1", "EXPECTED_SKIPS": NAMED[0]}, (1, [*LISTED, REQUIRED])),
        # The run then had what was to be hidden from it.
        (
            ("-k", "test_runs"),
            {"REQUIRE_ALL": "1", "EXPECTED_SKIPS": "there is no Prosody"},
            (1, ["EXPECTED_SKIPS, but all tests ran: there is no Prosody"]),
        ),
    ],
    ids=["quiet", "all named", "one not named", "named and not skipped"],
)
def test_skips_are_listed_and_those_that_are_not_named_fail_a_run_that_requires_all(
    tmp_path: Path, options: tuple[str, ...], environment: dict[str, str], expected: tuple[int, list[str]]
) -> None:
    assert run(tmp_path, *PLUGIN_ALONE, *options, **ALONE, **environment) == expected
