"""Under which account the embedded PostgreSQL runs: it refuses to run as root, so root starts it under another one."""

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
    uid: int
    gid: int


def account_for(data_dir: Path) -> Account | None:
    """None when we are not root: then everything runs as ourselves. Existing data keeps its owner."""
    if os.geteuid() != 0:
        return None
    if data_dir.exists() and data_dir.stat().st_uid != 0:
        return Account(data_dir.stat().st_uid, data_dir.stat().st_gid)
    entry = _find_or_create(ACCOUNT_NAME)
    return Account(entry.pw_uid, entry.pw_gid)


def _find_or_create(name: str) -> pwd.struct_passwd:
    """Without useradd (a minimal container) the servers' traditional account has to do."""
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


def own_folder(folder: Path, account: Account | None) -> None:
    """Make a private folder that the account owns and can reach."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if account is None:
        return
    os.chown(folder, account.uid, account.gid, follow_symlinks=False)
    open_the_way(folder)


def open_the_way(path: Path) -> None:
    """Let other accounts pass through the folders above ``path``. Passing is not listing: names stay private."""
    for parent in path.resolve().parents:
        mode = parent.stat().st_mode
        if not mode & stat.S_IXOTH:
            parent.chmod(stat.S_IMODE(mode) | stat.S_IXOTH)


def make_readable(folder: Path) -> None:
    """Let other accounts run programs from ``folder``, whatever umask it was installed under."""
    open_the_way(folder)
    for path in (folder, *folder.rglob("*")):
        mode = path.stat().st_mode
        wanted = mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0)
        if wanted != mode:
            path.chmod(stat.S_IMODE(wanted))
