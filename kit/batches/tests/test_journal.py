"""Tests of the in-flight journal: the next process reads which keys a process died with."""

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
    """Start a process that holds these keys, or an empty journal without keys, and kill it."""
    code = f"""import sys; from pathlib import Path; from kit.batches.journal import InFlightJournal
journal = InFlightJournal(Path({str(folder)!r})); journal.hold([{A!r}])
journal.clear() if {not keys} else journal.hold({list(keys)!r})
print("held", flush=True); sys.stdin.read()"""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_the_processes_that_died_with_a_key_are_counted(tmp_path: Path, crash_reports: CrashReports) -> None:
    die_with(tmp_path, A, B)
    die_with(tmp_path, B, C)
    assert crash_reports.count() == {A: 1, B: 2, C: 1}


def test_the_journal_of_a_living_process_is_not_reported(tmp_path: Path, crash_reports: CrashReports) -> None:
    journal = InFlightJournal(tmp_path)
    journal.hold([A])
    assert not crash_reports.count()
    journal.close()
    assert list(tmp_path.iterdir()) == []


def test_the_empty_journal_of_a_dead_process_is_removed(tmp_path: Path, crash_reports: CrashReports) -> None:
    die_with(tmp_path)
    assert not crash_reports.count()
    assert list(tmp_path.iterdir()) == []


def test_a_crash_report_is_forgotten_once_all_its_keys_are_over(tmp_path: Path, crash_reports: CrashReports) -> None:
    die_with(tmp_path, A, B)
    crash_reports.forget([A])
    assert crash_reports.count() == {A: 1, B: 1}
    crash_reports.forget([A, B])
    assert not crash_reports.count()


def test_a_folder_or_file_that_cannot_be_read_counts_as_missing(tmp_path: Path) -> None:
    die_with(tmp_path, A)
    (tmp_path / "loop").symlink_to("loop")
    assert CrashReports(tmp_path).count() == {A: 1}
    gone = CrashReports(tmp_path / "gone")
    gone.forget([A])
    assert not gone.count()


def test_a_journal_that_is_being_created_is_left_alone(tmp_path: Path, crash_reports: CrashReports) -> None:
    (tmp_path / "1-new").touch()
    assert not crash_reports.count()
    assert (tmp_path / "1-new").exists()


def test_a_journal_holds_as_many_keys_as_a_batch_takes(tmp_path: Path) -> None:
    journal = InFlightJournal(tmp_path)
    journal.hold([os.urandom(32) for _ in range(MAX_KEYS + 1)])
    journal.close()


def test_a_journal_allocates_its_blocks_first_so_that_a_full_disk_kills_no_process(
    tmp_path: Path, crash_reports: CrashReports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk, the kernel kills a process that writes into an unallocated block of a mapped file."""
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
