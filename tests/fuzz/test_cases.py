"""Inputs of the fuzz corpora and of all earlier crashes, read again, and a moment of random inputs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedded.supervisor.processes import PROJECT
from tests.fuzz.__main__ import NAMES
from tests.fuzz.targets import TARGETS

HERE = Path(__file__).parent


@pytest.mark.parametrize("target", NAMES)
def test_no_recorded_input_trips_a_target(target: str) -> None:
    recorded = [path for folder in ("corpus", "cases") for path in (HERE / folder / target).glob("*")]
    assert len(recorded) >= 10
    for path in recorded:
        TARGETS[target](path.read_bytes())


@pytest.mark.parametrize("target", TARGETS)
@given(data=st.binary(max_size=300))
def test_random_bytes_have_an_expected_result(target: str, data: bytes) -> None:
    assert target in NAMES, "it has no corpus"
    TARGETS[target](data)


@pytest.mark.parametrize(("required", "code"), [("", 0), ("1", 1)])
def test_a_run_without_atheris_is_reported(tmp_path: Path, required: str, code: int) -> None:
    (tmp_path / "atheris.py").write_text("raise ImportError", encoding="ascii")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "REQUIRE_ALL": required}
    command = [sys.executable, "-m", "tests.fuzz"]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.partition(".")[0], done.stderr) == (code, "Not run: fuzzing", "")
