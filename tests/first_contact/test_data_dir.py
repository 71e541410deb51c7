"""DATA_DIR that cannot be used: one line names the remedy, and nothing in the folder is changed."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from embedded.servers.ports import free_port
from embedded.stack.running import refuse_foreign_data
from embedded.supervisor.processes import PROJECT
from kit.processes import StartError
from pushserver.config.data_dir import LOCK_NAME
from tests.rig.budget import first_everyday
from tests.rig.folders import fill, open_folder, small_disk
from tests.rig.server import CONFIGURED

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another account")


def refusal_of(command: str, data_dir: Path, *before: str) -> str:
    """Return the one line with which a start is refused. Without ``before``, nothing was started."""
    clean = {name: value for name, value in os.environ.items() if name not in CONFIGURED}
    environment = clean | {"DATA_DIR": str(data_dir), "PORT": str(free_port())}
    start = [*before, sys.executable, str(PROJECT / "manage.py"), command]
    ended = subprocess.run(start, env=environment, capture_output=True, text=True, check=False, timeout=180)
    assert ended.returncode == 1
    assert before or not ended.stdout
    [line] = ended.stderr.splitlines()
    return line


@pytest.fixture
def disk(tmp_path: Path, require_or_skip: Callable[[bool, str], None]) -> Iterator[Path]:
    """A small disk of its own."""
    (folder := tmp_path / "disk").mkdir()
    with small_disk(folder, require_or_skip, mib=8):
        yield folder


@needs_root
@pytest.mark.parametrize("command", first_everyday("up", "demo"))
def test_root_does_not_start_on_data_of_another_account(tmp_path: Path, command: str) -> None:
    (tmp_path / LOCK_NAME).touch()
    os.chown(tmp_path / LOCK_NAME, NOBODY, NOBODY)
    line = refusal_of(command, tmp_path)
    assert f": {tmp_path} holds data of nobody: start as nobody, or have root hand them" in line
    assert f"chown -R root '{tmp_path}'" in line
    assert not {"postgres", "prosody"} & {path.name for path in tmp_path.iterdir()}


@needs_root
def test_another_account_does_not_start_on_data_of_root() -> None:
    with open_folder() as folder:
        (data := folder / "data").mkdir(mode=0o700)
        os.seteuid(NOBODY)
        try:
            with pytest.raises(StartError, match=f"^{data} holds data of root: start as root, or have root hand them"):
                refuse_foreign_data(data)
        finally:
            os.seteuid(0)


@needs_root
def test_a_root_that_may_not_give_files_away_gets_an_instruction(tmp_path: Path) -> None:
    """Root has this limit in a container without capabilities, or on a network disk."""
    line = refusal_of("up", tmp_path, "setpriv", "--bounding-set=-chown")
    assert re.search(r": PostgreSQL does not run as root, and .* start as an ordinary user, or ", line)


def test_data_of_a_version_before_0_2_are_refused_and_left_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "PG_VERSION").write_text("18\n")
    assert refusal_of("up", tmp_path).endswith(
        f"{tmp_path} holds data of a version before 0.2.0, from which there is no way up: set DATA_DIR to another "
        "folder."
    )
    assert [path.name for path in (tmp_path / "postgres").iterdir()] == ["PG_VERSION"]
    assert not (tmp_path / LOCK_NAME).exists()


def test_a_small_or_full_disk_is_named_before_anything_is_made_and_at_a_later_start(disk: Path) -> None:
    """Metrics are mapped into memory, and writing them to a full disk would end the process with SIGBUS."""
    data, room = disk / "data", "make room there, or set DATA_DIR to a folder on another disk."
    ballast = fill(disk)
    assert refusal_of("up", data) == f"manage.py: {data} is on a full disk: {room}"
    ballast.unlink()
    small = refusal_of("up", data)  # leaves secrets
    assert small.startswith(f"manage.py up: the disk of {data} has 7 MiB left, and 128 are needed: make")
    fill(disk)
    full = f"pushserver.full_metrics_dir: The disk of METRICS_DIR ({data}/metrics) is full. Make"
    assert refusal_of("up", data).startswith(full)


def test_a_read_only_disk_is_named_also_when_it_has_data(disk: Path) -> None:
    refusal_of("up", disk / "data")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)  # noqa: S607
    assert refusal_of("demo", disk / "other") == (
        f"manage.py: {disk / 'other'} is on a read-only file system: set DATA_DIR to a folder that can be written."
    )
    line = refusal_of("up", disk / "data")
    unwritable = f"pushserver.unwritable_metrics_dir: METRICS_DIR ({disk}/data/metrics) cannot be written to."
    assert line.startswith(unwritable)
    assert "DATA_DIR" in line
