"""Code of the last release and of the working tree, and a replacement of one by the other as `git pull` does it."""

import shutil
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

from pushserver.start.release import PROJECT

GIT = shutil.which("git") or ""
TAGS = "v[0-9]*"
# No installation of an earlier commit can be upgraded: see CHANGELOG. Processes of those before open a gateway at their
# first push, when the files may be of the next release.
FIRST = "673ba0eece6acf77631d4f2eaee77f6b2d03a015"
# Stands in for a migration while no version has brought one yet, with changes that an upgrade may make.
MADE_UP = """
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("registrations", "0001_initial")]
    operations = [migrations.AddField("route", "made_up", models.TextField(null=True))]
"""


def last_release(clone: Path = PROJECT, *, first: str = FIRST) -> str:
    """Return the tag of the newest release before this commit, or else the first commit that can be upgraded.

    A shallow clone and a copy without `.git` have neither.
    """
    tags = _asked(clone, "tag", "--list", TAGS, "--merged=HEAD~", f"--contains={first}", "--sort=-version:refname")
    return tags.partition("\n")[0] or _asked(clone, "rev-parse", "--verify", f"{first}^{{commit}}")


def make_up_a_migration(old: Path, new: Path) -> None:
    """Add a migration to the new code, unless it has one that the old code lacks."""
    if _migrations(old) == _migrations(new):
        (new / "registrations" / "migrations" / "0002_made_up.py").write_text(MADE_UP)


def _migrations(code: Path) -> set[Path]:
    return {file.relative_to(code) for file in code.glob("*/migrations/*.py")}


def _asked(clone: Path, *arguments: str) -> str:
    if not GIT:
        return ""
    ended = subprocess.run([GIT, *arguments], cwd=clone, capture_output=True, text=True, check=False)
    return ended.stdout.strip() if ended.returncode == 0 else ""


def unpack_release(release: str, into: Path) -> None:
    archive = subprocess.run([GIT, "archive", release], cwd=PROJECT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(into, filter="data")


def copy_working_tree(into: Path) -> None:
    """Copy the files that are committed, or would be."""
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


def _put(file: Path, target: Path) -> None:
    """Write a file in one step, as a process may import it at this moment."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f"{target.name}.new")
    shutil.copyfile(file, draft)
    draft.replace(target)
