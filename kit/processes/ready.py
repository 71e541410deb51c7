"""Message to the parent that this process is ready, so that the process before it may end.

It uses a pipe, because a pipe belongs to one child only, and is closed when the child ends.
"""

import os
from contextlib import suppress

VARIABLE = "READY_FD"


def announce_ready() -> None:
    """Report to the parent that this process is ready. Do nothing if the parent expects no report or has ended."""
    if number := os.environ.pop(VARIABLE, ""):
        with suppress(OSError):
            os.write(int(number), b"\0")
            os.close(int(number))
