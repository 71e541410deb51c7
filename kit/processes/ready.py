"""Telling the parent that this process serves now, so that the process before it may end.

It uses a pipe and not a port, because a pipe is there for a child alone, and its end says that the child has gone.
"""

import os
from contextlib import suppress

VARIABLE = "READY_FD"


def announce_ready() -> None:
    """Say that this process serves. The parent may not have asked for it, or may have gone meanwhile."""
    if number := os.environ.pop(VARIABLE, ""):
        with suppress(OSError):
            os.write(int(number), b"\0")
            os.close(int(number))
