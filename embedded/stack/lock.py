"""A lock that allows one `manage.py up` per DATA_DIR. The kernel releases it with the process, even after SIGKILL."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kit.errors import StartError
from pushserver.config.data_dir import LOCK_NAME, VERSION_NAME, refuse_foreign_data, usable
from pushserver.start.release import version


@contextmanager
def only_one(data_dir: Path) -> Iterator[None]:
    """Hold the lock of ``data_dir``. This version must have made its data, or must be able to use it.

    Raises StartError when another process, another account or a version before 0.2.0 has it.
    """
    refuse_foreign_data(data_dir)
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
            if not (made_by := data_dir / VERSION_NAME).exists():
                made_by.write_text(f"{version()}\n", encoding="ascii")
        yield
