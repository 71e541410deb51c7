"""Choose the account of the embedded PostgreSQL, which refuses to run as root; root starts it under another account."""

import os
import pwd
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pushserver.supervisor.processes import StartError

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

    Without useradd (in a minimal container) it is the servers' traditional one, nobody.
    """
    useradd = shutil.which("useradd")
    try:
        return pwd.getpwnam(name)
    except KeyError:
        if useradd is None:
            return pwd.getpwnam("nobody")
    command = [useradd, "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", name]
    made = subprocess.run(command, check=False, capture_output=True, text=True)
    if made.returncode != 0:
        raise StartError(f"PostgreSQL does not run as root, and useradd failed: {made.stderr.strip()}")
    return pwd.getpwnam(name)


def own_folder(folder: Path, account: Account | None, *, below: Path) -> None:
    """Make a private folder that the account owns and can reach. ``below`` is opened for it, and what lies within.

    Raises StartError when a folder above ``below`` is closed.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    if account is None:
        return
    os.chown(folder, account.uid, account.gid, follow_symlinks=False)
    open_the_way(folder, account, below=below)


def open_the_way(path: Path, account: Account, *, below: Path) -> None:
    """Let the account pass through the folders above ``path`` that are ours: ``below`` and what lies within.

    Passing is not listing: names stay private. Folders above ``below`` belong to others, so a closed one raises
    StartError.
    """
    own = below.resolve()
    for parent in path.resolve().parents:
        if _may_pass(parent, account):
            continue
        if not parent.is_relative_to(own):
            raise StartError(
                f"PostgreSQL runs as the account {account.uid}, which may not pass {parent}. "
                f"Allow it (chmod o+x {parent}), or use a folder that everybody may pass, or do not start as root."
            )
        parent.chmod(stat.S_IMODE(parent.stat().st_mode) | stat.S_IXOTH)


def _may_pass(folder: Path, account: Account) -> bool:
    facts = folder.stat()
    if facts.st_uid == account.uid:
        return bool(facts.st_mode & stat.S_IXUSR)
    if facts.st_gid == account.gid:
        return bool(facts.st_mode & stat.S_IXGRP)
    return bool(facts.st_mode & stat.S_IXOTH)


def make_readable(folder: Path, account: Account) -> None:
    """Let the account run programs from ``folder``, whatever umask it was installed under.

    Raises StartError when a folder above it is closed.
    """
    open_the_way(folder, account, below=folder)
    for path in (folder, *folder.rglob("*")):
        mode = path.stat().st_mode
        wanted = mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0)
        if wanted != mode:
            path.chmod(stat.S_IMODE(wanted))
