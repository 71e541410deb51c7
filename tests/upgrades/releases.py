"""The code of the last release and that of the working tree, and how `git pull` puts one in place of the other."""

import shutil
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

from pushserver.start.release import PROJECT

GIT = shutil.which("git") or ""
TAGS = "v[0-9]*"


def last_release(clone: Path = PROJECT) -> str:
    """Return the tag of the newest release before this commit, else nothing: a shallow clone and a copy without `.git`
    have none.
    """
    return _asked(clone, "describe", "--tags", "--abbrev=0", f"--match={TAGS}", "HEAD~")


def _asked(clone: Path, *arguments: str) -> str:
    if not GIT:
        return ""
    reported = subprocess.run([GIT, *arguments], cwd=clone, capture_output=True, text=True, check=False)
    return reported.stdout.strip() if reported.returncode == 0 else ""


def unpack_release(release: str, into: Path) -> None:
    archive = subprocess.run([GIT, "archive", release], cwd=PROJECT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(into, filter="data")


def copy_working_tree(into: Path) -> None:
    """Copy what is committed and what would be."""
    listed = [GIT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (PROJECT / name).is_file():
            _put(PROJECT / name, into / name)


def pull(code: Path, into: Path) -> None:
    """Replace the files in place, below processes that run from them."""
    new = _files(code)
    for name in _files(into) - new:
        (into / name).unlink()
    for name in sorted(new):
        _put(code / name, into / name)


def _files(folder: Path) -> set[Path]:
    found = {file.relative_to(folder) for file in folder.rglob("*") if file.is_file()}
    return {file for file in found if "__pycache__" not in file.parts}


def _put(file: Path, place: Path) -> None:
    """Never half a file: somebody may import it at this moment."""
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(f"{place.name}.new")
    shutil.copyfile(file, draft)
    draft.replace(place)
