"""Folders that other accounts may enter. The folders of pytest are closed to them."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def open_folder() -> Iterator[Path]:
    """Make a folder that every account may traverse, and remove it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="pushserver-open-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
