"""What a process died with is known to whoever comes next."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kit.batches.journal import MAX_KEYS, CrashReports, InFlightJournal

A, B, C = (bytes([number]) * 32 for number in (1, 2, 3))


@pytest.fixture
def crash_reports(tmp_path: Path) -> CrashReports:
    return CrashReports(tmp_path)


def die_with(folder: Path, *keys: bytes) -> None:
    """Have a process hold these keys and be killed, or let go first without any."""
    code = f"""import sys; from pathlib import Path; from kit.batches.journal import InFlightJournal
journal = InFlightJournal(Path({str(folder)!r})); journal.hold([{A!r}])
journal.clear() if {not keys} else journal.hold({list(keys)!r})
print("held", flush=True); sys.stdin.read()"""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_each_death_with_a_key_is_counted(tmp_path: Path, crash_reports: CrashReports) -> None:
    die_with(tmp_path, A, B)
    die_with(tmp_path, B, C)
    assert crash_reports.count() == {A: 1, B: 2, C: 1}


def test_what_a_living_process_holds_is_nobody_elses_business(tmp_path: Path, crash_reports: CrashReports) -> None:
    journal = InFlightJournal(tmp_path)
    journal.hold([A])
    assert not crash_reports.count()
    journal.close()
    assert list(tmp_path.iterdir()) == []


def test_who_dies_with_an_empty_journal_leaves_nothing(tmp_path: Path, crash_reports: CrashReports) -> None:
    die_with(tmp_path)
    assert not crash_reports.count()
    assert list(tmp_path.iterdir()) == []


def test_a_death_is_forgotten_once_all_that_was_held_is_over(tmp_path: Path, crash_reports: CrashReports) -> None:
    die_with(tmp_path, A, B)
    crash_reports.forget([A])
    assert crash_reports.count() == {A: 1, B: 1}
    crash_reports.forget([A, B])
    assert not crash_reports.count()


def test_a_folder_that_cannot_be_read_stops_nobodys_work(tmp_path: Path) -> None:
    die_with(tmp_path, A)
    (tmp_path / "loop").symlink_to("loop")
    assert CrashReports(tmp_path).count() == {A: 1}
    gone = CrashReports(tmp_path / "gone")
    gone.forget([A])
    assert not gone.count()


def test_nothing_is_made_of_a_file_that_is_being_made(tmp_path: Path, crash_reports: CrashReports) -> None:
    (tmp_path / "1-new").touch()
    assert not crash_reports.count()
    assert (tmp_path / "1-new").exists()


def test_holds_as_many_as_a_batch_takes(tmp_path: Path) -> None:
    journal = InFlightJournal(tmp_path)
    journal.hold([os.urandom(32) for _ in range(MAX_KEYS + 1)])
    journal.close()


def test_what_is_held_has_its_place_on_the_disk_and_costs_no_process_when_there_is_none(
    tmp_path: Path, crash_reports: CrashReports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write into a hole of a mapped file, on a full disk, kills the process that writes."""
    journal = InFlightJournal(tmp_path)
    assert journal.path.stat().st_blocks * 512 >= journal.path.stat().st_size > 0

    def is_full(*_arguments: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "posix_fallocate", is_full)
    without = InFlightJournal(tmp_path)
    assert list(tmp_path.iterdir()) == [journal.path]
    without.hold([A])
    without.add([B])
    assert without._memory[4:68] == A + B
    without.close()
    journal.close()
    assert crash_reports.count() == {}
    assert list(tmp_path.iterdir()) == []
