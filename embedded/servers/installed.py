"""PostgreSQL as Debian installs it and as operators run it. Tests and benchmarks use it with DATABASE=system.

It serves a cluster of our own with the defaults of the package: LLVM compiles expensive queries, 100 connections, the
costs of rotating disks, and the collation of the C library. Only access from other machines is switched off.
"""

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from embedded.servers.postgres import EMBEDDED, EmbeddedPostgres, Release
from kit.processes import StartError

DEBIAN = Path("/usr/lib/postgresql")
SETTINGS = {"listen_addresses": ""}  # the socket only, as for the embedded one


def chosen(environment: Mapping[str, str] = os.environ) -> Release:
    """Return the release that DATABASE names: `system`, or by default the embedded one."""
    name = environment.get("DATABASE") or "embedded"
    if name not in {"embedded", "system"}:
        raise StartError(f"DATABASE is {name}: it can be embedded or system.")
    return EMBEDDED if name == "embedded" else installed()


def installed(folder: Path = DEBIAN) -> Release:
    """Return the newest release below the folder in which Debian keeps all of them. Raises StartError without one."""
    programs = [each.parent for each in folder.glob("*/bin/postgres")]
    if not programs:
        raise StartError("PostgreSQL is not installed (on Debian: apt-get install postgresql).")
    newest = max(programs, key=lambda each: int(each.parent.name))
    return Release(newest.parent.name, SETTINGS, ("--locale=C.UTF-8",), newest)


def postgres(data_dir: Path, settings: Mapping[str, str]) -> EmbeddedPostgres:
    """Return a cluster of the release that DATABASE names, for a test or a benchmark.

    Programs before version 16 return to their working folder by its path. So its temporary folders are opened for
    passing, because under root the programs run as another account.
    """
    release = chosen()
    if release.folder is not None:
        temporary = Path(tempfile.gettempdir()).resolve()
        for parent in data_dir.resolve().parents:
            if parent.exists() and temporary in parent.parents:
                parent.chmod(parent.stat().st_mode | stat.S_IXOTH)
    return EmbeddedPostgres(data_dir, settings, release)
