"""Archive of Java's classes (CDS), which makes Spark start faster: Java reads and verifies ten thousand classes less.

One run writes the archive for later runs. Java checks that an archive fits, and ignores one that does not.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "spark-classes-{}.jsa"


def archive_of(jars: Path, folder: Path) -> Path | None:
    """Return the path of the archive for this Java and these JARs, whether it exists or not.

    Return None without a Java, or if SPARK_CONF_DIR puts a folder before the JARs, because Java takes an archive for
    JARs only.
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
    """Yield the path of a draft to write. If the block succeeds, the draft replaces the archive and all older ones."""
    draft = archive.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    try:
        yield draft
        draft.replace(archive)
        for other in set(archive.parent.glob(NAME.format("*"))) - {archive}:
            other.unlink()
    finally:
        draft.unlink(missing_ok=True)
