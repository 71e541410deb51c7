"""Lineage of a report: the version of the code that computed it."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from django.conf import settings

PACKAGE = Path(__file__).parents[1]
SHOWN_DIGITS = 12


def job_files() -> Iterator[Path]:
    """Yield the files that Spark runs."""
    yield PACKAGE / "__init__.py"
    yield from sorted((PACKAGE / "jobs").rglob("*.py"))


def code_version() -> str:
    """Return the version of the server and a digest of the jobs. Equal digests mean equal computations."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in job_files())).hexdigest()
    return f"{settings.VERSION} {digest[:SHOWN_DIGITS]}"
