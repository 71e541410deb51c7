"""Seeds of the simulation: everything fails in every order, and nothing is lost, doubled or reported wrongly.

`make simulate SEEDS=10000` runs many seeds, `make simulate SEED=7` one. Seeds run in a process of their own, with a
fixed order of sets.
"""

import functools
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.rig.budget import first_everyday

SEED = int(os.environ.get("SEED") or 0)
EVERYDAY = 3
ASKED = int(os.environ.get("SEEDS") or (1 if os.environ.get("SEED") else 0))


@pytest.fixture(scope="module")
def simulate(new_database: Callable[[str], str]) -> Callable[..., str]:
    """Return ``simulate(first, count)``, which runs seeds once and returns the output, a line for each seed."""
    url = new_database("simulation")

    @functools.cache
    def run(first: int, count: int) -> str:
        command = [sys.executable, "-m", "tests.simulation", str(first), str(count)]
        environment = os.environ | {"DATABASE_URL": url, "PYTHONHASHSEED": "0", "TRACE": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(command, check=False, env=environment, **pipes)
        assert done.returncode == 0, done.stdout[-20_000:]
        return done.stdout

    return run


@pytest.mark.parametrize("count", [ASKED] if ASKED else first_everyday(EVERYDAY, 20))
def test_nothing_is_lost_doubled_or_reported_wrongly(simulate: Callable[..., str], count: int) -> None:
    print(simulate(SEED, count).strip().splitlines()[-1])


def test_a_seed_decides_everything(simulate: Callable[..., str]) -> None:
    after_others = simulate(SEED, EVERYDAY).splitlines()[EVERYDAY - 1]
    alone = simulate(SEED + EVERYDAY - 1, 1).splitlines()[0]
    assert alone == after_others
