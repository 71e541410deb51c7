"""Which release an upgrade is tested from, and that `git pull` is imitated well."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.upgrades.releases import GIT, last_release, pull

SOMEBODY = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")


@pytest.fixture
def git(require_or_skip: Callable[[bool, str], None], tmp_path: Path) -> Callable[..., None]:
    """Return ``git("tag", "v1")``, in a new repository."""
    require_or_skip(bool(GIT), "there is no git")

    def run(*arguments: str) -> None:
        subprocess.run([GIT, *SOMEBODY, *arguments], cwd=tmp_path, check=True, capture_output=True)

    run("init")
    return run


def test_the_last_release_is_the_newest_tag_before_this_commit(git: Callable[..., None], tmp_path: Path) -> None:
    for tag in ("v0.1.0", "v0.2.0", "a-mark", "v0.3.0"):
        git("commit", "--allow-empty", "--message=more")
        git("tag", "--annotate", "--message=released", tag)
    assert last_release(tmp_path) == "v0.2.0"


def test_a_clone_without_tags_and_history_has_no_release(git: Callable[..., None], tmp_path: Path) -> None:
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
