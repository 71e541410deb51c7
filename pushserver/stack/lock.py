"""Allow one `manage.py up` per DATA_DIR. The kernel releases the lock with its owner, however the owner ended."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pushserver.data_dir import LOCK_NAME, refuse_data_of_another_account, usable
from pushserver.supervisor.processes import StartError


@contextmanager
def only_one(data_dir: Path) -> Iterator[None]:
    """Hold the lock of ``data_dir``. Raises StartError when another process or another account has it."""
    refuse_data_of_another_account(data_dir)
    with usable(data_dir):
        data_dir.mkdir(parents=True, exist_ok=True)
        file = (data_dir / LOCK_NAME).open("a+", encoding="ascii")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise StartError(f"already running on {data_dir} (process {file.read() or '?'}).") from None
        with usable(data_dir):
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        yield
