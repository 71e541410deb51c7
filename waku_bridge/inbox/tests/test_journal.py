"""Tests of the journal: the next process reads from it which envelopes a process died with."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.logs import capture_logs
from waku_bridge.inbox.journal import InFlightJournal, read

A, B, C = (bytes([number]) * 32 for number in (1, 2, 3))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[InFlightJournal]:
    journal = InFlightJournal(tmp_path)
    yield journal
    journal.close()


def die_with(folder: Path, *hashes: bytes) -> None:
    """Start a process that holds these hashes, or none any more, and kill it."""
    code = f"""import sys; from pathlib import Path; from waku_bridge.inbox.journal import InFlightJournal
journal = InFlightJournal(Path({str(folder)!r})); journal.hold([{A!r}])
journal.clear(); journal.hold({list(hashes)!r})
print("held", flush=True); sys.stdin.read()"""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_the_processes_that_died_with_an_envelope_are_counted(tmp_path: Path, journal: InFlightJournal) -> None:
    die_with(tmp_path, A, B)
    die_with(tmp_path, B, C)
    assert journal.count_deaths() == {A: 1, B: 2, C: 1}


def test_the_journal_of_a_living_process_is_not_counted_and_the_empty_one_of_a_dead_one_is_removed(
    tmp_path: Path, journal: InFlightJournal
) -> None:
    die_with(tmp_path)
    other = InFlightJournal(tmp_path)
    other.hold([A])
    other.hold([B])  # of another step of the batch
    assert (journal.count_deaths(), read(other.path)) == ({}, [A, B])
    other.close()
    assert list(tmp_path.iterdir()) == [journal.path]


def test_the_journal_of_a_dead_process_is_forgotten_once_all_its_envelopes_are_over(
    tmp_path: Path, journal: InFlightJournal
) -> None:
    die_with(tmp_path, A, B)
    journal.forget([A])
    assert journal.count_deaths() == {A: 1, B: 1}
    journal.forget([A, B])
    assert not journal.count_deaths()


def test_what_cannot_be_read_or_is_being_created_counts_as_missing(tmp_path: Path) -> None:
    journal = InFlightJournal(tmp_path / "own")
    die_with(journal.path.parent, A)
    (journal.path.parent / "loop").symlink_to("loop")
    (journal.path.parent / ".1-new").touch()
    assert journal.count_deaths() == {A: 1}
    assert (journal.path.parent / ".1-new").exists()
    (tmp_path / "own").rename(tmp_path / "moved")
    journal.forget([A])
    assert not journal.count_deaths()


def test_a_full_disk_is_logged_once_and_ends_no_process(
    journal: InFlightJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr(os, "pwrite", is_full)
        for _ in range(3):
            journal.hold([A])
            journal.clear()
    assert [(entry["event"], entry["reason"]) for entry in logs] == [("journal_not_kept", os.strerror(errno.ENOSPC))]
    journal.hold([B])
    assert read(journal.path) == [B]
