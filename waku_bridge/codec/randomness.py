"""Randomness is an argument everywhere; the shell passes ``os.urandom``."""

from collections.abc import Callable

RandomBytes = Callable[[int], bytes]

_DRAWS = 16


def not_all_zero(random_bytes: RandomBytes, size: int) -> bytes:
    """Draw ``size`` bytes again until one of them is not zero. A draw of one byte is zero once in 256 times.

    Raises ValueError when the source returns nothing but zeros.
    """
    for _ in range(_DRAWS):
        drawn = random_bytes(size)
        if any(drawn):
            return drawn
    raise ValueError("the source of randomness returns zeros only")
