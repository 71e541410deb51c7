"""Folders of tests: one that other accounts may enter, which the folders of pytest do not allow, and a small disk."""

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def open_folder() -> Iterator[Path]:
    """Make a folder that every account may traverse, and remove it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="pushserver-open-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def small_disk(folder: Path, require_or_skip: Callable[[bool, str], None], *, mib: int) -> Iterator[Path]:
    """Mount a disk of ``mib`` MiB in memory on ``folder``."""
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "small-disk", str(folder)]
    mounted = subprocess.run(mounting, check=False, capture_output=True)
    require_or_skip(mounted.returncode == 0, "nothing can be mounted here, which takes root's rights")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S607


def fill(disk: Path, *, left_mib: int = 0) -> Path:
    """Fill a disk, by default to the last byte, and return the file that fills it."""
    ballast = disk / f"ballast-{left_mib}"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while shutil.disk_usage(disk).free > left_mib * 2**20:
            file.write(bytes(2**16))
    return ballast
