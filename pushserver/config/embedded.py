"""Settings of the embedded servers, which stand in for what the environment does not configure.

`manage.py up` chooses them before the settings are read, and notes them in a file for every other process.
"""

import fcntl
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from pushserver.config.data_dir import LOCK_NAME

FILE_NAME, POSTGRES_FOLDER = "embedded.json", "postgres"

_choosers: list[Callable[[Path], Mapping[str, str]]] = []


def choose_by(chooser: Callable[[Path], Mapping[str, str]]) -> None:
    """Have this process start the servers: ``chooser`` returns their settings for a DATA_DIR, and writes nothing."""
    _choosers[:] = [chooser]


def settings_of(data_dir: Path, is_set: Callable[[str], bool]) -> dict[str, str]:
    """Return the settings of the embedded servers, by variable. A server that the environment configures is left out.

    ``is_set`` says whether the environment configures the server of a variable.
    """
    found = _choosers[0](data_dir) if _choosers else _noted(data_dir)
    return {name: value for name, value in found.items() if not is_set(name)}


def _noted(data_dir: Path) -> dict[str, str]:
    """Return what a running `manage.py up` noted. One that was killed leaves its file behind, but not its lock."""
    try:
        return dict(json.loads((data_dir / FILE_NAME).read_text(encoding="utf-8"))) if _is_up(data_dir) else {}
    except (OSError, ValueError):
        return {}


def _is_up(data_dir: Path) -> bool:
    """Return whether a `manage.py up` holds the lock of ``data_dir``. Raises OSError where it never ran."""
    with (data_dir / LOCK_NAME).open(encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
