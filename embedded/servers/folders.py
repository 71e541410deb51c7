"""The folders of embedded servers: their owner, secrets and leftover servers in them, and a copy of programs.

PostgreSQL refuses to run as root. Root starts it under another account, which gets no rights but to its own folders. It
may lack access to a folder above them. That does not matter: it is started inside its folder, and its programs lie
where every account may read them (`readable_copy`). The copy has no data: a removed or damaged one is made again.
"""

import errno
import fcntl
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from embedded.supervisor.processes import Account
from kit.processes import StartError

ACCOUNT_NAME = "pgserver"
# Places for copies. The second one is for a container whose own file system is read-only.
PLACES = (Path("/var/cache"), Path(tempfile.gettempdir()))
STOP_SECONDS = 20.0


def wheel(name: str) -> Path:
    """Return the folder of an installed wheel without importing it. Raises StartError without one.

    An import of PostgreSQL's warns without a user runtime folder, and one of Valkey's brings a second Redis client.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise StartError(f"The wheel {name} is not installed, and no other server is configured in its place.")
    return Path(spec.origin).parent


def write_private(file: Path, text: str) -> None:
    """Write a new file of mode 600 in place of an older one, which might have another mode or owner."""
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
        stream.write(text)


def stop_leftover(pid_file: Path, folder: Path) -> None:
    """Stop the server that ``pid_file`` names if it works in ``folder``, and remove the file.

    It outlived a killed supervisor. The caller holds the lock on DATA_DIR, so it belongs to no other one. The working
    folder distinguishes it from an unrelated process with the same id: in a container, ids repeat at every
    start.
    """
    with suppress(OSError, ValueError, psutil.Error):
        process = psutil.Process(int(pid_file.read_text(encoding="utf-8").split("\n", 1)[0]))
        if Path(process.cwd()) == folder.resolve():
            process.terminate()
            if process in psutil.wait_procs([process], timeout=STOP_SECONDS)[1]:
                process.kill()
    pid_file.unlink(missing_ok=True)


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


def readable_copy(root: Path, parts: Sequence[str], name: str, places: Iterable[Path] = PLACES) -> Path:
    """Return a folder called ``name`` with a copy of the ``parts`` of ``root``, in the first place that takes it.

    A new copy is announced in a line of output. Raises StartError when no place takes it.
    """
    faults = []
    for place in places:
        try:
            folder = _own_folder(place / "pushserver")
            with (folder / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # other checkouts may create or replace the same copy
                return _copy(root, parts, folder / name)
        except OSError as error:
            # A copied folder raises one error that lists those of its files.
            reason = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror or error
            faults.append(f"{place}: {reason}")
    raise StartError(
        f"PostgreSQL does not run as root, and its programs cannot be copied to where another account may read them "
        f"({'; '.join(faults)}): make that possible, or start as an ordinary user."
    )


def _own_folder(folder: Path) -> Path:
    """Return the folder for copies. Only this account may write it."""
    folder.mkdir(exist_ok=True)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
        raise OSError(errno.EPERM, f"{folder} belongs to someone else")
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise OSError(errno.EPERM, "mounted with noexec")
    folder.chmod(0o755)
    return folder


def _copy(root: Path, parts: Sequence[str], target: Path) -> Path:
    """Create the copy under another name first, because an interrupted copy must not look complete.

    It takes the place of a damaged one, which a running server may still use.
    """
    if _sizes(target, parts) == _sizes(root, parts):
        return target
    with tempfile.TemporaryDirectory(dir=target.parent, ignore_cleanup_errors=True) as draft:
        made = Path(draft, "new")
        for part in parts:
            shutil.copytree(root / part, made / part, symlinks=True)
        for path in (made, *made.rglob("*")):  # whatever umask they were installed under
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
        if target.exists():
            target.rename(Path(draft, "old"))
        made.rename(target)
    print(f"PostgreSQL does not run as root: another account runs a copy of its programs in {target}.", flush=True)  # noqa: T201
    return target


def _sizes(root: Path, parts: Sequence[str]) -> dict[Path, int]:
    """Return the size of each file by its path below ``root``."""
    files = (file for part in parts for file in (root / part).rglob("*") if file.is_file())
    return {file.relative_to(root): file.stat().st_size for file in files}
