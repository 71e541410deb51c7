"""Inputs of the fuzz corpora and of all earlier crashes, read again."""

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

HERE = Path(__file__).parent


@pytest.mark.parametrize("target", TARGETS)
def test_no_recorded_input_trips_a_target(target: str) -> None:
    recorded = [path for folder in ("corpus", "cases") for path in (HERE / folder / target).glob("*")]
    assert len(recorded) >= 10
    for path in recorded:
        TARGETS[target](path.read_bytes())
