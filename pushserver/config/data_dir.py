"""DATA_DIR, and what keeps it from being used: each reason is one line that says what to do.

Data are served by the account that made them. Files of two accounts side by side would be of use to neither.
"""

import errno
import os
import pwd
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kit.processes import StartError

LOCK_NAME = "up.lock"  # the first file of a server's data: its owner is theirs
VERSION_NAME = "version"  # the version that made the data; there was no such file before 0.2.0
# A first start writes 50 MB, and PostgreSQL that cannot write its log ends.
MIN_FREE_MIB = 128


def refuse_foreign_data(folder: Path) -> None:
    """Raise StartError when another account, or a version before 0.2.0, has started the server on this folder."""
    with usable(folder):
        lock = folder / LOCK_NAME
        if lock.exists() and lock.stat().st_uid != os.geteuid():
            raise StartError(_belongs_to(folder, lock.stat().st_uid))
        if (folder / "postgres").exists() and not (folder / VERSION_NAME).exists():
            raise StartError(
                f"{folder} holds data of a version before 0.2.0, from which there is no way up: set DATA_DIR to "
                f"another folder."
            )


def refuse_a_full_disk(folder: Path) -> None:
    """Raise StartError when there is no room to start a server in."""
    free = shutil.disk_usage(folder).free // 2**20
    if free < MIN_FREE_MIB:
        raise StartError(
            f"the disk of {folder} has {free} MiB left, and {MIN_FREE_MIB} are needed: make room there, or set "
            f"DATA_DIR to a folder on another disk."
        )


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
            return _belongs_to(folder, folder.stat().st_uid)
    return f"{folder} cannot be used ({error.strerror}): set DATA_DIR to another folder."


def _belongs_to(folder: Path, uid: int) -> str:
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
