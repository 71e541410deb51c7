"""Choice of the release that an upgrade is tested from, and the imitation of `git pull`."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.upgrades.releases import GIT, last_release, make_up_a_migration, pull

SOMEBODY = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")


@pytest.fixture
def git(require_or_skip: Callable[[bool, str], None], tmp_path: Path) -> Callable[..., str]:
    """Return ``git("tag", "v1")`` for a new repository, which returns git's output."""
    require_or_skip(bool(GIT), "there is no git")

    def run(*arguments: str) -> str:
        done = subprocess.run([GIT, *SOMEBODY, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    run("init")
    return run


@pytest.mark.parametrize(
    ("first", "release"), [("a-beginning", "v0.10.0"), ("v0.10.0", "v0.10.0"), ("a-mark", "a-mark"), ("HEAD", "HEAD")]
)
def test_the_last_release_is_the_newest_tag_before_this_commit_that_can_be_upgraded(
    first: str, release: str, git: Callable[..., str], tmp_path: Path
) -> None:
    for tag in ("v0.1.0", "a-beginning", "v0.9.0", "v0.10.0", "a-mark", "v0.11.0"):
        git("commit", "--allow-empty", "--message=more")
        git("tag", tag)
    expected = release if release.startswith("v") else git("rev-parse", release)
    assert last_release(tmp_path, first=first) == expected


def test_a_migration_is_made_up_only_where_there_is_none(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    folders = [code / "registrations" / "migrations" for code in (old, new)]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "0001_initial.py").touch()
    made_up = folders[1] / "0002_made_up.py"
    make_up_a_migration(old, new)
    assert made_up.exists()
    made_up.rename(folders[1] / "0002_real.py")
    make_up_a_migration(old, new)
    assert not made_up.exists()


def test_a_clone_without_tags_and_history_has_no_release(git: Callable[..., str], tmp_path: Path) -> None:
    git("commit", "--allow-empty", "--message=all there is")
    assert last_release(tmp_path) == ""


def test_pulling_replaces_adds_and_removes(tmp_path: Path) -> None:
    old, new, folder = (tmp_path / name for name in ("old", "new", "folder"))
    for code, files in (
        (old, {"same": "1", "gone": "1", "below/changed": "1"}),
        (new, {"same": "1", "below/changed": "2"}),
    ):
        for name, text in files.items():
            (code / name).parent.mkdir(parents=True, exist_ok=True)
            (code / name).write_text(text)
    pull(old, folder)
    pull(new, folder)
    found = {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}
    assert found == {"same": "1", "below/changed": "2"}
