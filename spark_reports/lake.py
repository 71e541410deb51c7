"""The lake: facts of closed days in Parquet files below one path or URL, for every reader of Parquet.

    facts/attempts/day=2026-11-20/part-0.parquet    one file for each table and day; its footer has the export's id
    facts/days/day=2026-11-20/part-0.parquet        written last: the export's id, and rows and digest of each file
    incoming/                                       what an export is writing

A day counts when the footers of all its tables have the id that `days` has. Each file replaces the former one at once.
A day whose replacement was interrupted is torn: it does not count until it is exported again.
"""

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import structlog
from django.conf import settings
from pyarrow import fs

from spark_reports.jobs.plan import path_of
from spark_reports.jobs.tables import DAYS, EVENT_TABLES, SCHEMA_VERSION, Table, Type

log = structlog.get_logger(__name__)
EXPORT_ID = "export_id"  # the key in the footers, and the column of `days`
_DAY = re.compile(r"day=\d{4}-\d\d-\d\d")  # and no copy such as day=2026-11-20.old
# What network file systems answer that know no fsync of a folder.
NO_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP})
_ARROW: dict[Type, pa.DataType] = {
    Type.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    Type.DATE: pa.date32(),
    Type.STRING: pa.string(),
    Type.INT: pa.int32(),
    Type.LONG: pa.int64(),
    Type.DOUBLE: pa.float64(),
    Type.BOOLEAN: pa.bool_(),
}


class LakeError(Exception):
    """A fault of the lake. The text names it, and the command that repairs it, in one line."""


@dataclass(frozen=True, slots=True)
class Day:
    """One exported day. ``key_id`` names the key of its pseudonyms: days with different keys cannot be joined."""

    day: date
    export_id: str
    schema_version: int
    key_id: str
    # False if retention had removed a part of the day from the database before the export.
    is_complete: bool
    # The first day of which every registration event was still in the database.
    events_since: date
    rows: Mapping[str, int]
    digests: Mapping[str, str]

    @property
    def row_count(self) -> int:
        return sum(self.rows.values())

    @property
    def digest(self) -> str:
        """The digest of all files of the day."""
        return hashlib.sha256("".join(sorted(self.digests.values())).encode()).hexdigest()

    def to_rows(self) -> pa.Table:
        """Return the rows of `days`, one for each table."""
        same = {name: getattr(self, name) for name in DAYS.column_names[3:]}
        rows = [{"table_name": name, "rows": n, "sha256": self.digests[name], **same} for name, n in self.rows.items()]
        return pa.Table.from_pylist(rows, arrow_schema(DAYS))

    @classmethod
    def from_rows(cls, day: date, rows: list[dict[str, Any]]) -> "Day":
        same = {name: rows[0][name] for name in DAYS.column_names[3:]}
        counts, digests = ({row["table_name"]: row[name] for row in rows} for name in ("rows", "sha256"))
        return cls(day, **same, rows=counts, digests=digests)


class TornDay(LakeError):  # noqa: N818 - names a state
    """A day does not count, because a file of it is missing, unreadable, or of another export.

    ``recorded`` is what `days` has of it, if that can be read.
    """

    def __init__(self, message: str, recorded: Day | None) -> None:
        super().__init__(message)
        self.recorded = recorded


def arrow_schema(table: Table, *, day: bool = False) -> pa.Schema:
    """Return the columns of a table. In files of the lake the day is part of the path, and no column."""
    days = [pa.field("day", pa.date32(), nullable=False)] if day else []
    return pa.schema([*days, *(pa.field(c.name, _ARROW[c.type], c.is_nullable) for c in table.columns)])


class Lake:
    """The lake at ``url``, which Spark gets, too: a local path, or file:, s3a:, gs:, hdfs:."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            self._files, self._root = fs.FileSystem.from_uri(_for_arrow(self.url))
        except (pa.ArrowException, ValueError, OSError) as error:
            raise LakeError(f"REPORTS_LAKE cannot be opened: {_first_line(error)}") from error
        self._is_local = isinstance(self._files, fs.LocalFileSystem)
        if self._names("manifests"):
            raise LakeError(
                "REPORTS_LAKE has the folders of an earlier version, and is not read. Move facts, manifests and "
                "reports away, and export the days that the database still has: manage.py export_events --from DAY"
            )

    # Reading ---------------------------------------------------------------------------------------------------------
    def has(self, day: date) -> bool:
        """Return whether the day was ever exported. It may be torn."""
        return bool(self._files.get_file_info(self._path(path_of(DAYS.name, day))).type == fs.FileType.File)

    def day(self, day: date) -> Day | None:
        """Return a day that counts, or None if it was never exported. Raises TornDay."""
        recorded = None
        try:
            if recorded := self.recorded(day):
                for name in recorded.rows:
                    self._refuse_another(path_of(name, day), recorded)
        except LakeError as error:
            raise TornDay(f"{day} does not count: {error}", recorded) from error
        return recorded

    def recorded(self, day: date) -> Day | None:
        """Return what `days` has of a day, which may be torn. Raises LakeError if that cannot be read."""
        if not self.has(day):
            return None
        if rows := self.read(DAYS, day).to_pylist():
            return Day.from_rows(day, rows)
        raise LakeError(f"{path_of(DAYS.name, day)} is empty.")

    def _refuse_another(self, path: str, recorded: Day) -> None:
        if (self._schema(path).metadata or {}).get(EXPORT_ID.encode()) != recorded.export_id.encode():
            raise LakeError(f"{path} is of another export.")

    def days(self, first: date, last: date) -> Iterator[Day]:
        """Yield what `days` has of the days of a range, oldest first, without those that cannot be read."""
        for name in self._names(f"facts/{DAYS.name}"):
            if f"day={first}" <= name <= f"day={last}" and _DAY.fullmatch(name):
                try:
                    found = self.recorded(date.fromisoformat(name.removeprefix("day=")))
                except LakeError as error:
                    log.warning("day_left_out", error=str(error))
                else:
                    yield from [found] if found else []

    def verify(self, found: Day, *only: Table) -> None:
        """Check the files of all tables, or of ``only`` some. Raises LakeError if one has other bytes or columns."""
        repair = f"Export it again: manage.py export_events --day {found.day} --replace"
        if found.schema_version != SCHEMA_VERSION:
            written = f"{found.day} was written with schema {found.schema_version}"
            raise LakeError(f"{written}, and this server reads {SCHEMA_VERSION}. {repair}")
        for table in only or EVENT_TABLES:
            path = path_of(table.name, found.day)
            with self._reading(path) as source:
                if hashlib.file_digest(source, "sha256").hexdigest() != found.digests.get(table.name):
                    raise LakeError(f"{path} was altered. {repair}")
            if not fits(self._schema(path), arrow_schema(table)):
                raise LakeError(f"{path} has other columns than {table.name} of schema {SCHEMA_VERSION}. {repair}")

    def read(self, table: Table, day: date) -> pa.Table:
        with self._reading(path_of(table.name, day)) as source:
            return pq.read_table(source, schema=arrow_schema(table))

    def _schema(self, path: str) -> pa.Schema:
        with self._reading(path) as source:
            return pq.read_schema(source)

    @contextmanager
    def _reading(self, path: str) -> Iterator[pa.NativeFile]:
        """Open a file. Raises LakeError if it is missing or unreadable, and OSError if the lake cannot be reached."""
        damages = (pa.ArrowException, OSError) if self._is_local else (pa.ArrowException, FileNotFoundError)
        try:
            with self._files.open_input_file(self._path(path)) as source:
                yield source
        except FileNotFoundError as error:
            raise LakeError(f"{path} is missing.") from error
        except damages as error:
            raise LakeError(f"{path} cannot be read: {_first_line(error)}") from error

    # Writing ---------------------------------------------------------------------------------------------------------
    @contextmanager
    def incoming(self, export_id: str) -> Iterator[Path]:
        """Yield an empty folder of this machine for the files of an export, from which `publish` takes them.

        It is on the file system of a local lake, so that files can be renamed. Files of killed exports are removed.
        """
        folder = Path(self._root) / "incoming" if self._is_local else scratch_in(settings.DATA_DIR) / "incoming"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            if self._is_local:
                _make(Path(self._root))
            (own := folder / export_id).mkdir(parents=True)
            yield own
        except (OSError, pa.ArrowException) as error:
            raise LakeError(f"The lake failed: {_first_line(error)}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def publish(self, day: Day, incoming: Path) -> None:
        """Put the files of a day in place, that of `days` last. Once this returns, a power failure loses none."""
        pq.write_table(day.to_rows(), file_in(incoming, DAYS))
        for table in (*EVENT_TABLES, DAYS):
            self._put(file_in(incoming, table), self._path(path_of(table.name, day.day)))

    def _put(self, source: Path, target: str) -> None:
        if self._is_local:
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            _sync(source)
            source.replace(target)
            for folder in Path(target).relative_to(self._root).parents:
                _sync(Path(self._root, folder))
        else:
            fs.copy_files(str(source), target, fs.LocalFileSystem(), self._files)

    def forget_before(self, first: date) -> None:
        """Remove the days before ``first``, beginning with their rows in `days`."""
        for table in sorted(self._names("facts"), key=lambda name: name != DAYS.name):
            for name in self._names(f"facts/{table}"):
                if name.startswith("day=") and name < f"day={first}":
                    self._files.delete_dir(self._path(f"facts/{table}/{name}"))

    def _names(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder."""
        found = self._files.get_file_info(fs.FileSelector(self._path(folder), allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == fs.FileType.Directory)

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"


def file_in(folder: Path, table: Table) -> Path:
    """Return the file of a table outside of the lake: of an export that is written, or of a report."""
    return folder / f"{table.name}.parquet"


def fits(found: pa.Schema, expected: pa.Schema) -> bool:
    """Return whether a file has the columns of its table.

    It may lack an optional column that was added later, and have columns that a later version added.
    """
    types = dict(zip(found.names, found.types, strict=True))
    return all(types.get(c.name, c.type if c.nullable else None) == c.type for c in expected)


def scratch_in(data_dir: Path) -> Path:
    """Return the folder for temporary files, which hold pseudonyms.

    It is below the first folder of SPARK_LOCAL_DIRS, or below DATA_DIR.
    """
    disk = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    return Path(disk or data_dir) / "report-scratch"


def _make(folder: Path) -> None:
    """Make a folder and those above it, so that a power failure loses none of them."""
    for missing in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
        missing.mkdir()
        _sync(missing.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not path.is_dir() or error.errno not in NO_SYNC:
            raise
    finally:
        os.close(descriptor)


def _for_arrow(url: str) -> str:
    """Return a URL with Arrow's schemes: s3 instead of s3a, and file for a path without a scheme."""
    if url.startswith("s3a://"):
        return "s3://" + url.removeprefix("s3a://")
    return url if "://" in url else Path(url.removeprefix("file:")).resolve().as_uri()


def in_one_line(error: Exception) -> str:
    """Return an error in one line: the text of our own errors, and for an OSError its first line with a prefix."""
    return f"The lake failed: {_first_line(error)}" if isinstance(error, OSError) else str(error)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".") + "."
