"""Randomness comes in as an argument; the shell passes ``os.urandom``."""

from collections.abc import Callable

RandomBytes = Callable[[int], bytes]

_TRIES = 16


def not_all_zero(random_bytes: RandomBytes, size: int) -> bytes:
    """Draw ``size`` bytes again until one of them is not zero. One zero byte comes by chance every 256 draws.

    Raises ValueError when the source returns nothing but zeros.
    """
    for _ in range(_TRIES):
        drawn = random_bytes(size)
        if any(drawn):
            return drawn
    raise ValueError("the source of randomness returns zeros only")
