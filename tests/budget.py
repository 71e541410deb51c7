"""How many made-up inputs a test gets: what an everyday run can wait for, and many times more in a nightly one."""

from hypothesis import settings

EVERYDAY = 50
NIGHTLY = 20 * EVERYDAY


def register_profiles() -> None:
    # How long an example takes says more about the machine than about the code.
    settings.register_profile("default", max_examples=EVERYDAY, deadline=None)
    settings.register_profile("nightly", max_examples=NIGHTLY, deadline=None)


def examples(everyday: int) -> int:
    """Return ``everyday``, or what corresponds to it in the profile of this run."""
    return everyday * settings().max_examples // EVERYDAY
