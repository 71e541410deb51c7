"""A copy of programs that every account may run, for originals in a closed folder.

It has no data: a removed or damaged copy is made again.
"""

import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kit.errors import StartError

# The second one is for a container whose own file system is read-only.
PLACES = (Path("/var/cache"), Path(tempfile.gettempdir()))


def readable_copy(root: Path, parts: Sequence[str], name: str, places: Iterable[Path] = PLACES) -> Path:
    """Return a folder called ``name`` with a copy of the ``parts`` of ``root``, in the first place that takes it.

    A new copy is announced in a line of output. Raises StartError when no place takes it.
    """
    faults = []
    for place in places:
        try:
            folder = _own_folder(place / "pushserver")
            with _locked(folder):
                return _copy(root, parts, folder / name)
        except OSError as error:
            faults.append(f"{place}: {_reason(error)}")
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


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other checkouts, which may create or replace the same copy, out of ``folder``."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _copy(root: Path, parts: Sequence[str], target: Path) -> Path:
    """Create the copy under another name first, because an interrupted copy must not look complete."""
    wanted = _sizes(root, parts)
    if _sizes(target, parts) == wanted:
        return target
    draft = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        for part in parts:
            shutil.copytree(root / part, draft / "new" / part, symlinks=True)
        _open_to_all(draft / "new")
        _replace(target, draft)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    print(f"PostgreSQL does not run as root: another account runs a copy of its programs in {target}.", flush=True)  # noqa: T201
    return target


def _replace(target: Path, draft: Path) -> None:
    """Put the new copy in place of a damaged one, which a running server may still use."""
    if target.exists():
        target.rename(draft / "old")
    (draft / "new").rename(target)


def _sizes(root: Path, parts: Sequence[str]) -> dict[Path, int]:
    """Return the size of each file by its path below ``root``."""
    files = (file for part in parts for file in (root / part).rglob("*") if file.is_file())
    return {file.relative_to(root): file.stat().st_size for file in files}


def _open_to_all(folder: Path) -> None:
    """Let every account read and run the files, whatever umask they were installed under."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)


def _reason(error: OSError) -> str:
    """Return the error in a few words. A copied folder raises one error that lists those of its files."""
    if isinstance(error, shutil.Error):
        return str(error.args[0][0][2])
    return error.strerror or str(error)
