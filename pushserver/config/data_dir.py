"""DATA_DIR, what keeps it from being used, and the settings of the embedded servers in it.

Each reason is one line that says what to do. The embedded servers stand in for what the environment does not configure.
`manage.py up` chooses their settings before the settings are read, and notes them in a file for every other process.
"""

import errno
import fcntl
import json
import os
import pwd
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kit.processes import StartError

LOCK_NAME = "up.lock"  # the first file of a server's data: its owner is theirs
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


@contextmanager
def usable(folder: Path) -> Iterator[None]:
    """Raise StartError in place of an OSError that is due to where ``folder`` lies or whose it is."""
    try:
        yield
    except OSError as error:
        raise StartError(_reason(folder, error)) from error


def _reason(folder: Path, error: OSError) -> str:
    existing = next(each for each in (folder, *folder.parents) if os.access(each, os.F_OK))
    match error.errno:
        case errno.EROFS:
            return f"{folder} is on a read-only file system: set DATA_DIR to a folder that can be written."
        case errno.ENOSPC | errno.EDQUOT:
            return f"{folder} is on a full disk: make room there, or set DATA_DIR to a folder on another disk."
        case errno.EACCES | errno.EPERM if existing != folder:
            return f"{folder} cannot be made by {_name(os.geteuid())}: set DATA_DIR to a folder of your own."
        case errno.EACCES | errno.EPERM:
            return belongs_to(folder, folder.stat().st_uid)
    return f"{folder} cannot be used ({error.strerror}): set DATA_DIR to another folder."


def belongs_to(folder: Path, uid: int) -> str:
    owner, me = _name(uid), _name(os.geteuid())
    return (
        f"{folder} holds data of {owner}: start as {owner}, or have root hand them over (chown -R {me} '{folder}'), or "
        f"set DATA_DIR to another folder."
    )


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"account {uid}"
