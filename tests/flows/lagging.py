"""Worker on a machine whose clock goes back: `python -m tests.flows.lagging FILE ARGUMENTS-OF-CELERY...`.

Once FILE exists, the clocks of this process and its children are an hour behind.
"""

import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from django.utils import timezone

BACK = timedelta(hours=1)
BACK_NS = 3600 * 10**9


def lag(file: Path) -> None:
    """Replace the clocks that the server reads. Clocks with which Celery and asyncio measure durations stay as they
    are.
    """
    now, time_ns = timezone.now, time.time_ns

    def earlier() -> datetime:
        return now() - BACK * file.exists()

    def earlier_ns() -> int:
        return time_ns() - BACK_NS * file.exists()

    patch = pytest.MonkeyPatch()
    patch.setattr(timezone, "now", earlier)
    patch.setattr(time, "time_ns", earlier_ns)


if __name__ == "__main__":
    lag(Path(sys.argv[1]))
    from celery.__main__ import main

    sys.argv = ["celery", *sys.argv[2:]]
    main()
