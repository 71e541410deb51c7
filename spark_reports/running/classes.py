"""The archive of Java's classes, with which Spark starts faster: ten thousand are not read and verified again.

A run leaves it to those that follow. Java itself checks that it fits, and does without it where it does not.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "spark-classes-{}.jsa"


def archive_of(jars: Path, folder: Path) -> Path | None:
    """Return where the archive of this Java and these JARs is, or is to be.

    None where SPARK_CONF_DIR puts a folder before the JARs: Java takes an archive for these alone.
    """
    home, java = os.environ.get("JAVA_HOME"), shutil.which("java")
    java = str(Path(home, "bin", "java")) if home else java
    if os.environ.get("SPARK_CONF_DIR") or java is None:
        return None
    parts = [Path(java).resolve(), *sorted(jars.glob("*.jar"))]
    fingerprint = "\n".join(f"{part} {part.stat().st_mtime_ns} {part.stat().st_size}" for part in parts)
    return folder / NAME.format(hashlib.sha256(fingerprint.encode()).hexdigest()[:16])


@contextmanager
def replacing(archive: Path) -> Iterator[Path]:
    """Give a draft to write, and put it in the place of the archive and of all older ones unless that fails."""
    draft = archive.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    try:
        yield draft
        draft.replace(archive)
        for other in set(archive.parent.glob(NAME.format("*"))) - {archive}:
            other.unlink()
    finally:
        draft.unlink(missing_ok=True)
