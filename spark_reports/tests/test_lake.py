"""The lake: a day counts whole or not at all, whatever happens to its files, and everybody can read it."""

import os
import re
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import date, timedelta
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from registrations.models import RegistrationEvent
from spark_reports.export import copying
from spark_reports.export.days import ExportError, digests_in, export_day
from spark_reports.jobs import tables
from spark_reports.jobs.plan import path_of
from spark_reports.jobs.tables import DAYS, EVENT_TABLES, SCHEMA_VERSION
from spark_reports.lake import EXPORT_ID, Day, Lake, LakeError, TornDay, arrow_schema, file_in
from spark_reports.nights.nights import last_closed_day
from spark_reports.tests.history import History, midnight
from tests.rig.rows import make_attempt, make_envelope, make_event, make_notification

DAY = date(2026, 11, 20)
Change = Callable[[pa.Table], pa.Table]


def publish(lake: Lake, export_id: str, **changes: Any) -> Day:
    """Publish a day without rows."""
    with lake.incoming(export_id) as folder:
        for table in EVENT_TABLES:
            schema = arrow_schema(table).with_metadata({EXPORT_ID: export_id})
            pq.write_table(schema.empty_table(), file_in(folder, table))
        rows = {table.name: 0 for table in EVENT_TABLES}
        day = Day(DAY, export_id, SCHEMA_VERSION, "2026-11-f00d", True, DAY, rows, digests_in(folder))
        lake.publish(replace(day, **changes), folder)
    return replace(day, **changes)


def left_in(folder: Path) -> Day | None:
    """Return the day in a lake, or None if it does not count."""
    with suppress(TornDay):
        if found := Lake(str(folder)).day(DAY):
            Lake(str(folder)).verify(found)
            return found
    return None


def path_in(lake_url: str, table: str, day: date) -> Path:
    return Path(lake_url, path_of(table, day))


# Ends at every step ---------------------------------------------------------------------------------------------------
class Killed(BaseException):
    pass


class Disk:
    """A folder as a power failure leaves it: what was there before, and what was synced since."""

    def __init__(self, root: Path) -> None:
        self.root, self.files, self.folders = root, dict[int, bytes](), dict[int, list[tuple[str, int, bool]]]()
        for path in (root, *root.rglob("*")):
            self.sync(path)

    def sync(self, path: Path) -> None:
        if path.is_dir():
            self.folders[path.stat().st_ino] = [(p.name, p.stat().st_ino, p.is_dir()) for p in path.iterdir()]
        else:
            self.files[path.stat().st_ino] = path.read_bytes()

    def restore(self, target: Path, inode: int = 0) -> Path:
        target.mkdir()
        for name, child, is_folder in self.folders.get(inode or self.root.stat().st_ino, []):
            if is_folder:
                self.restore(target / name, child)
            else:
                (target / name).write_bytes(self.files.get(child, b""))
        return target


@contextmanager
def killed_at(step: int, disk: Disk) -> Iterator[None]:
    """Kill the block before its n-th sync or rename."""
    steps, fsync, rename = count(), os.fsync, os.replace

    def next_step() -> None:
        if next(steps) == step:
            raise Killed

    def synced(descriptor: int) -> None:
        next_step()
        fsync(descriptor)
        disk.sync(Path(f"/proc/self/fd/{descriptor}").resolve())

    def renamed(source: Any, target: Any) -> None:
        next_step()
        rename(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", synced)
        patch.setattr(os, "replace", renamed)
        yield


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_day_counts_whole_or_not_at_all_after_a_kill_or_a_power_failure_at_any_step(tmp_path, is_replaced):
    before = tmp_path / "before"
    before.mkdir()
    old = publish(Lake(str(before)), "old") if is_replaced else None
    seen = set()
    for step in count():
        killed, new = tmp_path / f"killed-{step}", None
        shutil.copytree(before, killed)
        disk = Disk(killed)
        with killed_at(step, disk), suppress(Killed):
            new = publish(Lake(str(killed)), "new")
        cut_off = left_in(disk.restore(tmp_path / f"cut-off-{step}"))
        found = left_in(killed)
        seen |= {each and each.export_id for each in (cut_off, found)}
        publish(Lake(str(killed)), "again")
        assert left_in(killed) is not None
        if new:
            assert (found, cut_off) == (new, new)
            break
        assert {each.export_id for each in (cut_off, found) if each} <= {"old", "new"}
    assert seen == ({"old", "new", None} if old else {"new", None})
    assert step > 3 * len(EVENT_TABLES)


def test_a_power_failure_after_the_first_export_leaves_the_lake_and_the_folders_above_it(tmp_path):
    (root := tmp_path / "disk").mkdir()
    disk = Disk(root)
    with killed_at(-1, disk):
        new = publish(Lake(str(root / "data" / "lake")), "new")
    assert left_in(disk.restore(tmp_path / "cut-off") / "data" / "lake") == new


def test_two_machines_that_write_a_day_at_once_leave_that_of_one_or_none(tmp_path):
    """The lock of runs and exports prevents it, while its session lasts."""
    rename, lake, other = os.replace, Lake(str(tmp_path)), Lake(str(tmp_path))
    for after in (1, len(EVENT_TABLES)):
        renames = count(1)

        def renamed(source: Any, target: Any, renames: Any = renames, after: int = after) -> None:
            rename(source, target)
            if next(renames) == after:
                publish(other, f"other-{after}")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "replace", renamed)
            with pytest.raises(LakeError, match=r"^The lake failed: .*No such file"):
                publish(lake, "one")
        found = left_in(tmp_path)
        assert found is not None
        assert found.export_id == f"other-{after}"


# Torn days ------------------------------------------------------------------------------------------------------------
def of_another(path: Path) -> None:
    rows = pq.read_table(path, partitioning=None)
    pq.write_table(rows.replace_schema_metadata({EXPORT_ID: "another"}), path)


DAMAGES = {
    "is missing": Path.unlink,
    "cannot be read": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "cannot be read: ": lambda path: path.write_bytes(b""),
    "is of another export": of_another,
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("words", "damage"), DAMAGES.items())
def test_a_torn_day_is_exported_again_if_the_database_has_all_of_it_and_otherwise_refused(
    lake_url, day, export, settings, words, damage
):
    make_envelope(at=midnight(day))
    first = export()
    damage(path_in(lake_url, "envelopes", day))
    with pytest.raises(TornDay, match=f"{day} does not count: facts/envelopes/.*{words}"):
        Lake(lake_url).day(day)
    second = export()
    assert (second.rows, second.export_id != first.export_id) == (first.rows, True)
    assert Lake(lake_url).day(day) == second

    damage(path_in(lake_url, "envelopes", day))
    settings.ENVELOPE_RETENTION_DAYS = 0
    with pytest.raises(ExportError, match=rf"{words}.* {day} cannot be exported again: parts of it are no longer"):
        export(replace=True)


@pytest.mark.django_db(transaction=True)
def test_an_unreadable_row_in_days_is_written_again_and_holds_up_no_other_day(lake_url, day, export):
    first = export()
    path = path_in(lake_url, "days", day)
    for damaged in (b"", b"PAR1", path.read_bytes()[:-9]):
        path.write_bytes(damaged)
        assert list(Lake(lake_url).days(day, day)) == []
        assert export().rows == first.rows
    pq.write_table(arrow_schema(DAYS).empty_table(), path)
    assert export().rows == first.rows


@pytest.mark.django_db(transaction=True)
def test_altered_facts_and_other_columns_are_refused_with_the_command_that_repairs_them(lake_url, day, export):
    lake, repair = Lake(lake_url), f"export_events --day {day} --replace"
    make_attempt(make_notification(at=midnight(day)), started_at=midnight(day))
    found = rewrite(lake_url, export(), lambda rows: rows.slice(0, 0), digest=False)
    with pytest.raises(LakeError, match=f"was altered.*{repair}"):
        lake.verify(found)
    found = rewrite(lake_url, export(replace=True), lambda rows: rows.drop_columns(["outcome"]))
    with pytest.raises(LakeError, match=f"other columns than attempts.*{repair}"):
        lake.verify(found)
    call_command("export_events", "--day", str(day), "--replace")
    lake.verify(lake.day(day))


def rewrite(lake_url: str, day: Day, change: Change, *, digest: bool = True) -> Day:
    """Write the attempts of a day as another version or another hand would have written them."""
    path = path_in(lake_url, "attempts", day.day)
    rows = pq.read_table(path, partitioning=None)
    pq.write_table(change(rows).replace_schema_metadata(rows.schema.metadata), path)
    return replace(
        day, digests=day.digests | {"attempts": sha256(path.read_bytes()).hexdigest()} if digest else day.digests
    )


@pytest.mark.django_db(transaction=True)
def test_a_full_disk_leaves_the_day_as_it_was(lake_url, day, export, monkeypatch):
    """No file may grow beyond some bytes, while PostgreSQL has more rows to give."""
    first = export()
    monkeypatch.setattr(copying, "CHUNK_SIZE", 1)
    for number in range(100):
        make_envelope(at=midnight(day), reason=f"reason {number}")
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, usual[1]))
    try:
        with pytest.raises(LakeError, match=r"^The lake failed: .*File too large"):
            export(replace=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert Lake(lake_url).day(day) == first
    assert not Path(lake_url, "incoming").exists()


# A database and servers of other times --------------------------------------------------------------------------------
@pytest.mark.django_db(transaction=True)
def test_a_database_that_was_restored_to_an_earlier_time_replaces_no_day_that_has_more(lake_url, day, export):
    for _ in range(2):
        make_event(at=midnight(day))
    first = export()
    RegistrationEvent.objects.all()[:1].get().delete()
    for damage in (lambda _path: None, Path.unlink):
        damage(path_in(lake_url, "replies", day))
        with pytest.raises(
            ExportError, match=f"{day} cannot be exported again: the database has 1 of 2 registration_events"
        ):
            export(replace=True)
    assert Lake(lake_url).recorded(day) == first


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_torn", [False, True])
def test_a_day_that_retention_has_begun_to_remove_is_marked_and_never_replaced(lake_url, is_torn):
    day, lake = last_closed_day(timezone.now()) - timedelta(days=10), Lake(lake_url)
    first = export_day(day, lake, now=timezone.now())
    assert not first.is_complete
    if is_torn:
        path_in(lake_url, "days", day).write_bytes(b"")
    with pytest.raises(ExportError, match="no longer in the database"):
        export_day(day, lake, now=timezone.now(), replace=True)


@pytest.mark.django_db(transaction=True)
def test_days_of_a_newer_version_are_kept_and_those_of_an_older_one_exported_again(lake_url, day, export, monkeypatch):
    for version, written in ((SCHEMA_VERSION + 1, "newer"), (SCHEMA_VERSION - 1, "older")):
        with monkeypatch.context() as other:
            other.setattr("spark_reports.export.days.SCHEMA_VERSION", version)
            there = export(replace=True)
        with pytest.raises(LakeError, match=f"written with schema {version}, and this server reads {SCHEMA_VERSION}"):
            Lake(lake_url).verify(there)
        if written == "newer":
            with pytest.raises(ExportError, match=f"{day} was exported by a newer version: install that"):
                export()
        else:
            assert export().schema_version == SCHEMA_VERSION


@pytest.mark.django_db(transaction=True)
def test_a_column_of_a_later_version_is_not_read_and_one_that_a_day_does_not_have_yet_is_null(lake_url, day, export):
    """Both are optional."""
    make_attempt(make_notification(at=midnight(day)), started_at=midnight(day))

    def change(rows: pa.Table) -> pa.Table:
        return rows.drop_columns(["queued_us"]).append_column("of_tomorrow", pa.array([1]))

    Lake(lake_url).verify(rewrite(lake_url, export(), change))
    rows = Lake(lake_url).read(tables.ATTEMPTS, day)
    assert (rows.column_names, rows["queued_us"].to_pylist()) == (tables.ATTEMPTS.column_names, [None])


@pytest.mark.django_db(transaction=True)
def test_a_lake_of_before_days_were_a_table_is_refused_in_one_line(tmp_path, settings):
    (tmp_path / "manifests" / "facts").mkdir(parents=True)
    settings.REPORTS_LAKE = str(tmp_path)
    with pytest.raises(CommandError, match=r"^REPORTS_LAKE has the folders of an earlier version.*Move facts"):
        call_command("export_events")


def test_days_beyond_the_retention_of_the_lake_are_removed_with_all_their_files(tmp_path):
    lake = Lake(str(tmp_path))
    publish(lake, "old")
    torn = tmp_path / f"facts/attempts/day={DAY - timedelta(days=1)}"
    torn.mkdir()
    lake.forget_before(DAY)
    assert not torn.exists()
    assert left_in(tmp_path) is not None
    lake.forget_before(DAY + timedelta(days=1))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_copy_of_a_folder_and_files_of_other_programs_hold_up_neither_runs_nor_the_retention(tmp_path):
    lake = Lake(str(tmp_path))
    found = publish(lake, "new")
    for table in ("days", "attempts"):
        folder = tmp_path / "facts" / table
        shutil.copytree(folder / f"day={DAY}", folder / f"day={DAY}.old")
        (folder / "day=of-another").mkdir()
        for name in ("._day", f"day={DAY}_$folder$"):
            (folder / name).touch()
    (tmp_path / "facts" / ".DS_Store").touch()
    assert list(lake.days(DAY, DAY + timedelta(days=1))) == [found]
    lake.forget_before(DAY + timedelta(days=1))
    assert not list(tmp_path.rglob("*.parquet"))
    assert (tmp_path / "facts" / "days" / "._day").exists()


# Readers --------------------------------------------------------------------------------------------------------------
QUERY = re.compile(r"```sql\n(.*?)```", re.DOTALL)


@pytest.mark.django_db(transaction=True)
def test_a_week_is_read_with_duckdb_as_documented(lake_url, day, settings, monkeypatch):
    settings.ENVELOPE_RETENTION_DAYS = 30
    history, days = History(seed=5), [day - timedelta(days=n) for n in reversed(range(7))]
    for each in days:
        history.add_day(each, events=20, requests=30)
    call_command("export_events", "--from", str(days[0]))
    call_command("export_events", "--day", str(day), "--replace")  # the former file counts no more

    monkeypatch.chdir(Path(lake_url).parent)
    page = Path(__file__).parents[2].joinpath("docs", "reports.md").read_text(encoding="utf-8")
    outcomes, counts = (duckdb.sql(query).fetchall() for query in QUERY.findall(page.replace("/srv/lake", "lake")))
    assert {row[0] for row in outcomes} == {*days}
    assert counts
    assert all(found == expected for *_, found, expected in counts)
    attempts = sum(recorded.rows["attempts"] for recorded in Lake(lake_url).days(days[0], day))
    assert sum(number for *_, number in outcomes) == attempts > 0
