"""Number of examples and combinations that a test tries: few in an everyday run, many times more in a nightly one."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import Phase, settings

EVERYDAY = 50
NIGHTLY = 20 * EVERYDAY
MUTANTS = 10


def register_profiles() -> None:
    # No deadline: the duration of an example says more about the machine than about the code.
    settings.register_profile("default", max_examples=EVERYDAY, deadline=None)
    settings.register_profile("nightly", max_examples=NIGHTLY, deadline=None)
    # The original code and each mutant get the same inputs, so that the scores of two commits are comparable. One
    # failure is enough: a search for its smallest input takes long.
    phases = [Phase.explicit, Phase.generate]
    settings.register_profile("mutants", max_examples=MUTANTS, deadline=None, phases=phases, derandomize=True)


def examples(everyday: int) -> int:
    """Return ``everyday``, scaled to the profile of this run."""
    return everyday * settings().max_examples // EVERYDAY


def combinations(*values: Sequence[Any]) -> list[Any]:
    """Return the parameters of a test that takes one of each of ``values``: all combinations.

    An everyday run tries each value once, with the first of the others. A nightly run tries every combination.
    """
    first = [each[0] for each in values]
    return [_combination(chosen, first) for chosen in product(*values)]


def first_everyday(first: Any, *others: Any) -> list[Any]:
    """Return the parameters of a test that tries ``first`` in everyday runs, and ``others`` only in nightly ones.

    Each is one value, or a tuple with one value for each argument of the test.
    """
    several = (other if isinstance(other, tuple) else (other,) for other in others)
    return [first, *(pytest.param(*values, marks=pytest.mark.nightly) for values in several)]


def _combination(chosen: Sequence[Any], first: Sequence[Any]) -> Any:
    others = sum(one is not other for one, other in zip(chosen, first, strict=True))
    return pytest.param(*chosen, marks=[pytest.mark.nightly] if others > 1 else [])
