"""List of skipped tests at the end of a run: it is printed even by a quiet run, and REQUIRE_ALL=1 makes it a
failure.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from embedded.supervisor.processes import PROJECT

TESTS = """
import pytest


def test_runs() -> None: ...


@pytest.mark.parametrize("number", range(2))
def test_lacks(number, require_or_skip) -> None:
    require_or_skip(False, "there is no Prosody")


@pytest.mark.skipif(True, reason="only elsewhere")
def test_is_skipped() -> None: ...


def test_imports() -> None:
    pytest.importorskip("no_such_module")
"""
LISTED = [
    "1 test not run: could not import 'no_such_module': No module named 'no_such_module'",
    "1 test not run: only elsewhere",
    "2 tests not run: there is no Prosody",
]
REQUIRED = "REQUIRE_ALL=1, so that this is a failure."
OURS = ("-c", "pyproject.toml", "-p", "conftest")  # with the servers that conftest.py starts
PLUGIN_ALONE = ("-c", os.devnull, "-p", "tests.not_run", "-k", "not lacks", "-p", "no:cacheprovider")


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
    return ended.returncode, [
        line for line in lines if " not run: " in line or "REQUIRE_ALL" in line or "EXPECTED" in line
    ]


def test_a_quiet_run_lists_what_it_skipped(tmp_path: Path) -> None:
    assert run(tmp_path, *PLUGIN_ALONE, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1") == (0, LISTED[:2])


def test_a_run_that_skipped_nothing_passes_when_all_is_required(tmp_path: Path) -> None:
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "REQUIRE_ALL": "1"}
    assert run(tmp_path, *PLUGIN_ALONE, "-k", "test_runs", **alone) == (0, [])


def test_a_run_of_ours_that_skipped_anything_fails_when_all_is_required(tmp_path: Path) -> None:
    assert run(tmp_path, *OURS, REQUIRE_ALL="1") == (1, [*LISTED, REQUIRED])


def test_skips_that_are_named_are_no_failure_and_others_still_are(tmp_path: Path) -> None:
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "REQUIRE_ALL": "1"}
    named = [line.partition(" not run: ")[2] for line in LISTED[:2]]
    assert run(tmp_path, *PLUGIN_ALONE, **alone, EXPECTED_SKIPS="\n".join(named)) == (0, LISTED[:2])
    assert run(tmp_path, *PLUGIN_ALONE, **alone, EXPECTED_SKIPS=named[0]) == (1, [*LISTED[:2], REQUIRED])


def test_a_named_skip_that_did_not_happen_is_a_failure(tmp_path: Path) -> None:
    """The run then had what was to be hidden from it."""
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "REQUIRE_ALL": "1", "EXPECTED_SKIPS": "there is no Prosody"}
    code, lines = run(tmp_path, *PLUGIN_ALONE, "-k", "test_runs", **alone)
    assert (code, lines) == (1, ["EXPECTED_SKIPS, but all tests ran: there is no Prosody"])


@pytest.mark.nightly  # each process starts its servers
def test_a_run_in_several_processes_that_skipped_anything_fails_when_all_is_required(tmp_path: Path) -> None:
    assert run(tmp_path, *OURS, "-n", "2", REQUIRE_ALL="1") == (1, [*LISTED, REQUIRED])
