"""The account of the embedded PostgreSQL, which refuses to run as root. Root starts it under another account.

The account gets no rights but to its own folders. It may lack access to a folder above them. That does not matter: it
is started inside its folder, and its programs lie where every account may read them (`readable_copy`).
"""

import os
import pwd
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from embedded.supervisor.processes import Account
from kit.errors import StartError

ACCOUNT_NAME = "pgserver"


def account_for(data_dir: Path) -> Account | None:
    """Return the account for the server, or None when this process is not root and the server runs under its account.

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

    Where it cannot be created (a minimal container has no useradd, a read-only one no place for it), return the
    servers' traditional one, nobody.
    """
    with suppress(KeyError):
        return pwd.getpwnam(name)
    if useradd := shutil.which("useradd"):
        command = [useradd, "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", name]
        subprocess.run(command, check=False, capture_output=True)
    with suppress(KeyError):  # created here, or by another checkout that starts at the same time
        return pwd.getpwnam(name)
    return pwd.getpwnam("nobody")


def own_folder(folder: Path, account: Account | None) -> None:
    """Create a private folder, and give it with its contents to the account, unless the account owns it.

    Its own entry is changed last, so that an interrupted change is repeated. Raises StartError where root may not
    change owners.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)  # a copy may have lost the mode, and PostgreSQL requires it
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
