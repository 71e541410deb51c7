"""Files with secrets, which only their owner may read."""

import os
from pathlib import Path


def write_private(file: Path, text: str) -> None:
    """Write a new file of mode 600 in place of an older one, which might have another mode or owner."""
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
        stream.write(text)
