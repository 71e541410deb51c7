"""Version of this code, and its migrations compared with those of a database."""

import importlib.util
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

PROJECT = Path(__file__).resolve().parents[1]
# App and name of a migration.
Migration = tuple[str, str]
# The first migration of versions before 0.2.0, whose tables have other names.
BEFORE_0_2: Migration = ("pushserver", "0001_opened_records")
NO_WAY_UP = "of a version before 0.2.0, from which there is no way up: set DATABASE_URL to an empty database"


def version() -> str:
    """Return the version of this code, from the file `VERSION`."""
    return (PROJECT / "VERSION").read_text(encoding="ascii").strip()


@dataclass(frozen=True, slots=True)
class Schema:
    """Migrations that the database lacks (``missing``), and migrations that this version lacks (``newer``)."""

    missing: tuple[Migration, ...]
    newer: tuple[Migration, ...]
    is_too_old: bool = False

    @property
    def words(self) -> str:
        """Return the state in one line."""
        if self.is_too_old:
            return NO_WAY_UP
        if self.missing:
            return f"not up to date: {len(self.missing)} migrations are missing, the first is {_name(self.missing[0])}"
        if self.newer:
            return f"migrated by a newer version: {_name(self.newer[-1])} is not part of {version()}"
        return "up to date"


def compare(known: AbstractSet[Migration], applied: AbstractSet[Migration]) -> Schema:
    """Compare the migrations of this version with those of the database. Removed apps and squashed migrations do not
    count.
    """
    newest = dict(sorted(known))
    newer = sorted(one for one in applied - known if one[1] > newest.get(one[0], "~"))
    return Schema(tuple(sorted(known - applied)), tuple(newer), BEFORE_0_2 in applied)


def _name(migration: Migration) -> str:
    return ".".join(migration)


def known_migrations() -> set[Migration]:
    """Return app and name of every migration of the whole server.

    They are listed as files, because importing them takes longer.
    """
    apps = {*settings.INSTALLED_APPS, *settings.PAGE_APPS, "django.contrib.admin"}
    return {(name.rpartition(".")[2], file.stem) for name in apps for file in _migrations_of(name)}


def _migrations_of(name: str) -> Iterator[Path]:
    top, *below = name.partition(".apps.")[0].split(".")
    spec = importlib.util.find_spec(top)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield from Path(folder, *below, "migrations").glob("[0-9a-z]*.py")
