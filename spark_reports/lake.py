"""The lake: Parquet files below one path or URL, and the manifests that list the valid files of each day.

    facts/table=attempts/day=2026-11-20/<export>.parquet      manifests/facts/2026-11-20.json
    reports/report=error_rates/day=2026-11-20/<run>.parquet   manifests/reports/2026-11-20.json
    incoming/<run>/                                           files that a run is writing, which no manifest lists

Only the files in a day's manifest belong to the day, and the manifest is written last. Until then, new files stand
beside old ones under other names. So a reader always finds a complete day, and a second export counts no row twice.
"""

import errno
import hashlib
import json
import os
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from spark_reports.jobs.tables import EVENT_TABLES, REPORT_TABLES, SCHEMA_VERSION, Table, Type

READ_SIZE = 8 * 1024 * 1024
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


class Kind(StrEnum):
    """The two kinds of days in the lake."""

    FACTS = "facts"
    REPORTS = "reports"


TABLES: dict[Kind, tuple[Table, ...]] = {Kind.FACTS: EVENT_TABLES, Kind.REPORTS: REPORT_TABLES}
_FOLDER = {Kind.FACTS: "table", Kind.REPORTS: "report"}


@dataclass(frozen=True, slots=True)
class File:
    """One file of a manifest."""

    path: str  # below the lake
    rows: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One complete day. ``key_id`` names the key of its pseudonyms: days with different keys cannot be joined.

    For reports, ``facts_digest`` is the digest of the facts of their day, and ``code_version`` names the code that
    computed them.
    """

    day: str
    schema_version: int
    created_at: str
    key_id: str
    # False if retention had removed a part of the day from the database before the export.
    is_complete: bool = True
    # The first day of which every registration event was still in the database.
    events_since: str = ""
    facts_digest: str = ""
    code_version: str = ""
    tables: Mapping[str, Sequence[File]] = field(default_factory=dict)

    @property
    def rows(self) -> dict[str, int]:
        return {name: sum(file.rows for file in files) for name, files in self.tables.items()}

    @property
    def row_count(self) -> int:
        return sum(self.rows.values())

    @property
    def paths(self) -> dict[str, list[str]]:
        return {name: [file.path for file in files] for name, files in self.tables.items()}

    @property
    def digest(self) -> str:
        """The digest of all files of the day."""
        parts = sorted(file.sha256 for files in self.tables.values() for file in files)
        return hashlib.sha256("".join(parts).encode()).hexdigest()

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        """Read a manifest. Fields that a later version added are ignored.

        Raises ValueError, KeyError or TypeError when the text is no manifest.
        """
        values: dict[str, Any] = json.loads(text)
        if not isinstance(values, dict) or not isinstance(values["tables"], dict):
            raise TypeError("a manifest is an object, and so are its tables")
        date.fromisoformat(values.get("events_since") or values["day"])
        values["tables"] = {name: [File(**file) for file in files] for name, files in values["tables"].items()}
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})


def arrow_schema(table: Table) -> pa.Schema:
    """Return the columns of a table's files, without the day. In files of Spark all columns are nullable."""
    return pa.schema([pa.field(c.name, _ARROW[c.type], c.is_nullable) for c in table.columns])


class Lake:
    """The lake at ``url``, which Spark gets, too: a local path, or file:, s3a:, gs:, hdfs:."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            self._files, self._root = fs.FileSystem.from_uri(_for_arrow(self.url))
        except (pa.ArrowException, ValueError, OSError) as error:
            raise LakeError(f"REPORTS_LAKE cannot be opened: {_first_line(error)}") from error

    def manifest(self, kind: Kind, day: date) -> Manifest | None:
        """Return the manifest of a day, or None if the day was never completed."""
        path = _manifest_path(kind, day)
        if not self.has(kind, day):
            return None
        try:
            with self._files.open_input_stream(self._path(path)) as source:
                return Manifest.from_json(source.read().decode())
        except (ValueError, KeyError, TypeError) as error:
            raise LakeError(f"{path} is no manifest. {_repair(kind, day)}") from error

    def has(self, kind: Kind, day: date) -> bool:
        """Return whether the day was ever completed. Its manifest may be damaged."""
        return self.exists(_manifest_path(kind, day))

    def days(self, kind: Kind, first: date, last: date) -> Iterator[tuple[date, Manifest]]:
        """Yield the complete days within the range, oldest first."""
        for name in self._names(kind):
            if first.isoformat() <= name <= last.isoformat():
                day = date.fromisoformat(name)
                manifest = self.manifest(kind, day)
                if manifest is not None:
                    yield day, manifest

    def first_day(self, kind: Kind) -> date | None:
        """Return the oldest day that was ever completed."""
        names = self._names(kind)
        return date.fromisoformat(names[0]) if names else None

    def _names(self, kind: Kind) -> list[str]:
        """Return the names of the days with a manifest, oldest first. Other files are drafts of killed publications."""
        return sorted(Path(info.path).stem for info in self._list(f"manifests/{kind}") if info.path.endswith(".json"))

    def publish(self, kind: Kind, day: date, manifest: Manifest) -> None:
        """Publish a day: write its manifest, then remove all other files of the day.

        The other files are those of the former manifest, and those that broken exports left.
        """
        path = _manifest_path(kind, day)
        draft = f"{path}.{uuid.uuid4().hex}"
        with self.writing(draft) as out:
            out.write(manifest.to_json().encode())
        self.move(draft, path)
        self.tidy(kind, day, manifest)

    def forget_before(self, first: date) -> None:
        """Remove the days before ``first``. Manifests are removed first, so that no manifest lists removed files."""
        for kind in Kind:
            for info in self._list(f"manifests/{kind}"):
                if Path(info.path).name < first.isoformat():
                    self._files.delete_file(info.path)
            for table in TABLES[kind]:
                for info in self._list(folder_of(kind, table), fs.FileType.Directory):
                    if Path(info.path).name < f"day={first}":
                        self._files.delete_dir(info.path)

    def tidy(self, kind: Kind, day: date, manifest: Manifest | None) -> None:
        """Remove the files of a day that its manifest does not list: replaced ones, and those of broken exports."""
        kept = {file.path for files in manifest.tables.values() for file in files} if manifest else set()
        for table in TABLES[kind]:
            folder = folder_of(kind, table, day)
            for info in self._list(folder):
                if f"{folder}/{Path(info.path).name}" not in kept:
                    self._files.delete_file(info.path)

    def verify(self, kind: Kind, day: date, manifest: Manifest, only: Collection[str] = ()) -> None:
        """Check every file of the day, or those of the tables ``only``.

        Raises LakeError unless each file exists, is unchanged, and has the columns of its table.
        """
        if manifest.schema_version != SCHEMA_VERSION:
            raise LakeError(
                f"{day} was written with schema {manifest.schema_version}, and this server reads {SCHEMA_VERSION}. "
                f"{_repair(kind, day)}"
            )
        self._refuse_copies(kind, day, manifest)
        for table in [table for table in TABLES[kind] if not only or table.name in only]:
            if table.name not in manifest.tables:
                raise LakeError(f"{day} lacks {table.name}. {_repair(kind, day)}")
            for file in manifest.tables[table.name]:
                self._verify_file(kind, day, table, file)

    def _refuse_copies(self, kind: Kind, day: date, manifest: Manifest) -> None:
        files = [file for files in manifest.tables.values() for file in files if file.rows]
        if len({file.sha256 for file in files}) < len(files):
            raise LakeError(f"{day} lists the same rows twice. {_repair(kind, day)}")

    def _verify_file(self, kind: Kind, day: date, table: Table, file: File) -> None:
        if not self.exists(file.path):
            raise LakeError(f"{file.path} is missing. {_repair(kind, day)}")
        size, digest = self._size_and_digest(file.path)
        if (size, digest) != (file.size_bytes, file.sha256):
            fault = "is cut off or grown" if size != file.size_bytes else "was altered"
            raise LakeError(f"{file.path} {fault}. {_repair(kind, day)}")
        self.check_schema(table, file.path, _repair(kind, day))

    def check_schema(self, table: Table, path: str, repair: str = "Run it again.") -> None:
        """Raise LakeError unless a Parquet file has the columns of its table. ``repair`` is the hint of the error.

        A file may lack an optional column that was added later: the column is null then. Columns that a later version
        added are not read.
        """
        try:
            with self._files.open_input_file(self._path(path)) as source:
                found = pq.read_schema(source)
        except (pa.ArrowException, OSError) as error:
            raise LakeError(f"{path} is no readable Parquet file: {_first_line(error)} {repair}") from error
        types = dict(zip(found.names, found.types, strict=True))
        for column in arrow_schema(table):
            if types.get(column.name, column.type if column.nullable else None) != column.type:
                raise LakeError(f"{path} has other columns than {table.name} of schema {SCHEMA_VERSION}. {repair}")

    def read_table(self, table: Table, path: str) -> pa.Table:
        """Read a file. Raises LakeError if a required column has a null."""
        self.check_schema(table, path)
        nullable = pa.schema([column.with_nullable(True) for column in arrow_schema(table)])
        with self._files.open_input_file(self._path(path)) as source:
            rows = pq.read_table(source, schema=nullable)
        for column in table.columns:
            if not column.is_nullable and rows[column.name].null_count:
                raise LakeError(f"{path}: {column.name} is null in {rows[column.name].null_count} rows.")
        return rows

    def batches(self, path: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, some ten thousand at a time."""
        with self._files.open_input_file(self._path(path)) as source:
            yield from pq.ParquetFile(source).iter_batches()

    def describe(self, path: str, rows: int) -> File:
        """Return the size and digest of a file with its number of rows."""
        size, digest = self._size_and_digest(path)
        return File(path, rows, size, digest)

    @contextmanager
    def writing(self, path: str) -> Iterator[BinaryIO]:
        """Open a new file for writing.

        If writing fails, the file is removed, and LakeError names it.
        """
        full = self._path(path)
        try:
            self._files.create_dir(full.rsplit("/", 1)[0], recursive=True)
            with self._files.open_output_stream(full) as out:
                yield out
            self._sync(full)
        except (OSError, pa.ArrowException) as error:
            self.remove(path)
            raise LakeError(f"The lake failed: {path}: {_first_line(error)}") from error

    def remove(self, path: str) -> None:
        """Remove a file if possible. A failure is ignored, because no reader opens a file that no manifest lists."""
        with suppress(OSError):
            self._files.delete_file(self._path(path))

    def exists(self, path: str) -> bool:
        return bool(self._files.get_file_info(self._path(path)).type == fs.FileType.File)

    def move(self, source: str, target: str) -> None:
        """Move a file. Once this returns, a power failure neither loses it nor cuts it off."""
        self._files.create_dir(self._path(target).rsplit("/", 1)[0], recursive=True)
        self._sync(self._path(source))  # Spark has written it, and syncs nothing
        self._files.move(self._path(source), self._path(target))
        self._sync(self._path(target))

    def _sync(self, full: str) -> None:
        """Write a file and its folders to the disk of a local lake. An object store does so itself."""
        if not isinstance(self._files, fs.LocalFileSystem):
            return
        file, root = Path(full), Path(self._root)
        for path in (file, *(folder for folder in file.parents if folder.is_relative_to(root))):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            except OSError as error:
                if path == file or error.errno not in NO_SYNC:
                    raise
            finally:
                os.close(descriptor)

    def parquet_files(self, folder: str) -> list[str]:
        """Return the paths below the lake of the Parquet files in a folder, in order."""
        infos = [info for info in self._list(folder) if info.path.endswith(".parquet")]
        return sorted(f"{folder}/{Path(info.path).name}" for info in infos)

    def remove_folder(self, folder: str) -> None:
        if self._files.get_file_info(self._path(folder)).type == fs.FileType.Directory:
            self._files.delete_dir(self._path(folder))

    def _list(self, folder: str, kind: fs.FileType = fs.FileType.File) -> list[fs.FileInfo]:
        infos = self._files.get_file_info(fs.FileSelector(self._path(folder), allow_not_found=True))
        return [info for info in infos if info.type == kind]

    def _size_and_digest(self, path: str) -> tuple[int, str]:
        digest = hashlib.sha256()
        size = 0
        with self._files.open_input_stream(self._path(path)) as source:
            while chunk := source.read(READ_SIZE):
                digest.update(chunk)
                size += len(chunk)
        return size, digest.hexdigest()

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"


def folder_of(kind: Kind, table: Table, day: date | None = None) -> str:
    """Return the folder of a table below the lake, or of one day of it."""
    folder = f"{kind}/{_FOLDER[kind]}={table.name}"
    return f"{folder}/day={day}" if day else folder


def _manifest_path(kind: Kind, day: date) -> str:
    return f"manifests/{kind}/{day}.json"


def _repair(kind: Kind, day: date) -> str:
    if kind == Kind.FACTS:
        return f"Export it again: manage.py export_events --day {day} --replace"
    return f"Compute it again: manage.py run_reports --day {day}"


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
