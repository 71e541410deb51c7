"""Folders that other accounts reach, as those of pytest are closed."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def open_folder() -> Iterator[Path]:
    """Make a folder that everybody may pass, and remove it in the end."""
    folder = Path(tempfile.mkdtemp(prefix="pushserver-open-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
