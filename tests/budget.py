"""How much a test tries: what an everyday run can wait for, and many times more in a nightly one."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import Phase, settings

EVERYDAY = 50
NIGHTLY = 20 * EVERYDAY
MUTANTS = 10


def register_profiles() -> None:
    # How long an example takes says more about the machine than about the code.
    settings.register_profile("default", max_examples=EVERYDAY, deadline=None)
    settings.register_profile("nightly", max_examples=NIGHTLY, deadline=None)
    # The same inputs for the code as it is and for each mutant, so that the scores of two commits compare. That there
    # is a failure is enough: to look for its smallest input takes long.
    phases = [Phase.explicit, Phase.generate]
    settings.register_profile("mutants", max_examples=MUTANTS, deadline=None, phases=phases, derandomize=True)


def examples(everyday: int) -> int:
    """Return ``everyday``, or what corresponds to it in the profile of this run."""
    return everyday * settings().max_examples // EVERYDAY


def combinations(*values: Sequence[Any]) -> list[Any]:
    """Return the parameters of a test that takes one of each of these: all combinations.

    Every day each value is tried once, with the first of the others; the other combinations are tried nightly.
    """
    first = [each[0] for each in values]
    return [_combination(chosen, first) for chosen in product(*values)]


def first_everyday(first: Any, *others: Any) -> list[Any]:
    """Return the parameters of a test that is tried with the first of these every day, and with the others nightly.

    Each is one value, or a tuple with one for each argument.
    """
    several = (other if isinstance(other, tuple) else (other,) for other in others)
    return [first, *(pytest.param(*values, marks=pytest.mark.nightly) for values in several)]


def _combination(chosen: Sequence[Any], first: Sequence[Any]) -> Any:
    others = sum(one is not other for one, other in zip(chosen, first, strict=True))
    return pytest.param(*chosen, marks=[pytest.mark.nightly] if others > 1 else [])
