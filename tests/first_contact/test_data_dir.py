"""DATA_DIR that cannot be used: one line names the remedy, and nothing in the folder is changed."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from embedded.servers.ports import free_port
from embedded.supervisor.processes import PROJECT
from pushserver.config.data_dir import LOCK_NAME
from tests.rig.budget import first_everyday
from tests.rig.folders import fill, open_folder, small_disk
from tests.rig.server import CONFIGURED

NOBODY = 65534
Output = Callable[..., str]


@pytest.fixture
def refusal_of() -> Output:
    """Return ``refusal_of(command, data_dir)``, which returns the one line with which a start is refused."""

    def start(command: str, data_dir: Path) -> str:
        clean = {name: value for name, value in os.environ.items() if name not in CONFIGURED}
        environment = clean | {"DATA_DIR": str(data_dir), "PORT": str(free_port())}
        ended = subprocess.run(
            [sys.executable, str(PROJECT / "manage.py"), command],
            env=environment, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert (ended.returncode, ended.stdout) == (1, "")
        [line] = ended.stderr.splitlines()
        return line

    return start


@pytest.fixture
def open_path() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


@pytest.fixture
def disk(tmp_path: Path, require_or_skip: Callable[[bool, str], None]) -> Iterator[Path]:
    """A small disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with small_disk(folder, require_or_skip, mib=8):
        yield folder


@pytest.mark.parametrize("command", first_everyday("up", "demo"))
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give data to another account")
def test_root_does_not_start_on_data_of_another_account(refusal_of: Output, tmp_path: Path, command: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / LOCK_NAME).touch()
    os.chown(data / LOCK_NAME, NOBODY, NOBODY)
    line = refusal_of(command, data)
    assert f": {data} holds data of nobody: start as nobody, or have root hand them" in line
    assert f"chown -R root '{data}'" in line
    assert not (data / "postgres").exists()
    assert not (data / "prosody").exists()


def test_data_of_a_version_before_0_2_are_refused_and_left_as_they_are(refusal_of: Output, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "postgres").mkdir(parents=True)
    (data / "postgres" / "PG_VERSION").write_text("18\n")
    line = refusal_of("up", data)
    assert line.endswith(
        f"{data} holds data of a version before 0.2.0, from which there is no way up: set DATA_DIR to another folder."
    )
    assert [path.name for path in (data / "postgres").iterdir()] == ["PG_VERSION"]
    assert not (data / LOCK_NAME).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a program as another account")
def test_another_account_does_not_start_on_data_of_root(
    open_path: Path, require_or_skip: Callable[[bool, str], None]
) -> None:
    """Runs a program of its own, as this interpreter may lie in a folder that only root may enter."""
    python = shutil.which("python3", path="/usr/bin:/bin")
    require_or_skip(python is not None, "no python3 that every account may run")
    open_path.chmod(0o755)
    data = open_path / "data"
    data.mkdir(mode=0o700)
    for module in ("pushserver/config/data_dir.py", "kit/errors.py"):
        (open_path / module).parent.mkdir(parents=True)
        shutil.copy(PROJECT / module, open_path / module)
    program = """
        import pathlib, sys
        from pushserver.config.data_dir import refuse_foreign_data
        refuse_foreign_data(pathlib.Path(sys.argv[1]))
    """
    ended = subprocess.run(
        [str(python), "-c", dedent(program), str(data)],
        cwd="/", env={"PYTHONPATH": str(open_path)}, user=NOBODY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert f"{data} holds data of root: start as root, or have root hand them over" in ended.stderr.splitlines()[-1]


def test_a_small_or_full_disk_is_named_before_anything_is_made_and_at_a_later_start(
    refusal_of: Output, disk: Path
) -> None:
    """Metrics are mapped into memory, and writing them to a full disk would end the process with SIGBUS."""
    data, room = disk / "data", "make room there, or set DATA_DIR to a folder on another disk."
    ballast = fill(disk)
    assert refusal_of("up", data) == f"manage.py: {data} is on a full disk: {room}"
    ballast.unlink()
    line = refusal_of("up", data)  # leaves secrets
    assert line.startswith(f"manage.py up: the disk of {data} has 7 MiB left, and 128 are needed: make")
    fill(disk)
    line = refusal_of("up", data)
    assert line.startswith(f"pushserver.full_metrics_dir: The disk of METRICS_DIR ({data}/metrics) is full. Make")


def test_a_read_only_disk_is_named_also_when_it_has_data(refusal_of: Output, disk: Path) -> None:
    refusal_of("up", disk / "data")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)  # noqa: S607
    assert refusal_of("demo", disk / "other") == (
        f"manage.py: {disk / 'other'} is on a read-only file system: set DATA_DIR to a folder that can be written."
    )
    line = refusal_of("up", disk / "data")
    assert line.startswith(
        f"pushserver.unwritable_metrics_dir: METRICS_DIR ({disk}/data/metrics) cannot be written to."
    )
    assert "DATA_DIR" in line
