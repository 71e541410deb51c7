"""The account of the embedded PostgreSQL, which refuses to run as root: root starts it under another one.

The account gets no rights but to its own folders. It may not be able to pass a closed folder above them, and does not
need to: it is started inside its folder, and its programs lie where everybody may read them (`readable_copy`).
"""

import os
import pwd
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kit.errors import StartError

ACCOUNT_NAME = "pgserver"


@dataclass(frozen=True, slots=True)
class Account:
    """An account by its numbers."""

    uid: int
    gid: int


def account_for(data_dir: Path) -> Account | None:
    """Return the account for the server, or None when we are not root and everything runs as ourselves.

    Existing data keeps its owner.
    """
    if os.geteuid() != 0:
        return None
    if data_dir.exists() and data_dir.stat().st_uid != 0:
        return Account(data_dir.stat().st_uid, data_dir.stat().st_gid)
    entry = _find_or_create(ACCOUNT_NAME)
    return Account(entry.pw_uid, entry.pw_gid)


def _find_or_create(name: str) -> pwd.struct_passwd:
    """Return the account of this name.

    Where none can be made (a minimal container has no useradd, a read-only one no place for it) it is the servers'
    traditional one, nobody.
    """
    with suppress(KeyError):
        return pwd.getpwnam(name)
    if useradd := shutil.which("useradd"):
        command = [useradd, "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", name]
        subprocess.run(command, check=False, capture_output=True)
    with suppress(KeyError):  # made by us, or by another checkout that starts at the same time
        return pwd.getpwnam(name)
    return pwd.getpwnam("nobody")


def own_folder(folder: Path, account: Account | None) -> None:
    """Make a private folder, and give it with all that is in it to the account, if that is not its owner yet.

    Its own entry is changed last, so that an interrupted change is made again. Raises StartError where root may not
    change owners.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)  # a copy of it may have lost the mode, and PostgreSQL insists
    if account is None or folder.stat().st_uid == account.uid:
        return
    try:
        for path in (*folder.rglob("*"), folder):
            os.chown(path, account.uid, account.gid, follow_symlinks=False)
    except OSError as error:
        raise StartError(
            f"PostgreSQL does not run as root, and this root may not give {folder} to another account "
            f"({error.strerror}): start as an ordinary user, or set DATA_DIR to a folder on a local disk."
        ) from error
