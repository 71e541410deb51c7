"""Free space of the volumes that this process sees, and its history by the hour."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import LiteralString

from django.conf import settings

from pushserver.console.health.space import SIZE_OF_DATABASE, Volume
from pushserver.console.health.verdicts import listed
from pushserver.console.models import Count

MIB = 2**20
MOUNTS = Path("/proc/self/mounts")
# Beginnings of the names of file systems of other machines.
REMOTE = ("9p", "afs", "autofs", "ceph", "cifs", "fuse.", "gluster", "lustre", "nfs", "smb")
# The first and the last known value of each flow within a day, with their times.
PAST: LiteralString = f"""
    SELECT subject, min(begin_at), (array_agg(count ORDER BY begin_at))[1],
        max(begin_at), (array_agg(count ORDER BY begin_at DESC))[1]
    FROM pushserver_count
    WHERE figure = '{Count.Figure.HOUR}' AND begin_at > now() - interval '1 day'
        AND (subject = '{SIZE_OF_DATABASE}' OR subject LIKE 'free %')
    GROUP BY subject
"""


def volumes() -> list[Volume]:
    """Return the volumes, each once, with the names of all data on it."""
    found: dict[int, tuple[Path, list[str]]] = {}
    for name, folder in _folders().items():
        with suppress(OSError):  # nothing was written there yet
            found.setdefault(folder.stat().st_dev, (folder, []))[1].append(name)
    return list(_measured(found))


def _measured(found: Mapping[int, tuple[Path, list[str]]]) -> Iterator[Volume]:
    for folder, names in found.values():
        with suppress(OSError):
            free = os.statvfs(folder)
            size_mib = free.f_blocks * free.f_frsize // MIB
            yield Volume(listed(names), free.f_bavail * free.f_frsize // MIB, size_mib, names != ["reports"])


def _folders() -> Mapping[str, Path]:
    """Return the folders of our data by their names for people. Servers of the operator have theirs elsewhere."""
    is_embedded = settings.EMBEDDED.get("DATABASE_URL") == settings.DATABASE_URL
    embedded = {"PostgreSQL": settings.EMBEDDED_POSTGRES_DIR} if is_embedded else {}
    if settings.EMBEDDED.get("REDIS_URL") == settings.REDIS_URL:
        embedded["Redis"] = settings.DATA_DIR / "valkey"
    others = {"metrics": settings.METRICS_DIR, "DATA_DIR": settings.DATA_DIR}
    lake = settings.REPORTS_LAKE
    return {**embedded, **others, **({} if "://" in lake or _is_elsewhere(Path(lake)) else {"reports": Path(lake)})}


def _is_elsewhere(folder: Path) -> bool:
    """Return whether another machine has a folder. It may be away, and each question about it would hang as long."""
    mounts = [line.split()[1:3] for line in MOUNTS.read_text().splitlines()] if MOUNTS.exists() else []
    holding = [(len(point), kind) for point, kind in mounts if folder.is_relative_to(point)]
    return bool(holding) and max(holding)[1].startswith(REMOTE)
