"""Tests of what is in flight: a send counts until its result is recorded, which wakes the worker, and the next process
reads from the journal which keys a process died with.
"""

import asyncio
import errno
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from kit.batches.batch import Wakeup
from kit.batches.inflight import InFlight
from kit.batches.journal import MAX_KEYS, CrashReports, InFlightJournal
from kit.http import submit

TIMEOUT_SECONDS = 20.0


async def send(number: int, until: asyncio.Event | None = None) -> int:
    try:
        if until:
            await until.wait()
    except asyncio.CancelledError:
        return -number
    return number


def is_woken(wakeup: Wakeup, seconds: float = TIMEOUT_SECONDS) -> bool:
    readable, _, _ = select.select([wakeup], [], [], seconds)
    if readable:
        wakeup.clear()
    return bool(readable)


def on_loop(call: Callable[[], None]) -> None:
    async def do() -> None:
        call()

    submit(do()).result()


def test_results_stay_until_they_are_recorded() -> None:
    in_flight: InFlight[int] = InFlight(Wakeup())
    in_flight.start([partial(send, number) for number in (1, 2, 3)])
    while not in_flight.are_all_done():
        pass
    assert (in_flight.peek(2), in_flight.peek(2), in_flight.under_way) == ([1, 2], [1, 2], 3)
    in_flight.recorded(2)
    assert (in_flight.peek(9), in_flight.under_way, in_flight.are_all_done()) == ([3], 1, True)
    in_flight.recorded(1)
    assert not in_flight.has_results()


def test_the_first_result_wakes_the_worker_and_so_does_the_last() -> None:
    wakeup, first, other, last = Wakeup(), asyncio.Event(), asyncio.Event(), asyncio.Event()
    in_flight: InFlight[int] = InFlight(wakeup)
    in_flight.start([partial(send, number, event) for number, event in enumerate((first, other, last))])
    assert not is_woken(wakeup, 0.05)
    on_loop(first.set)
    assert is_woken(wakeup)
    on_loop(other.set)
    assert not is_woken(wakeup, 0.05)  # results are gathered, because a commit costs more than a send
    on_loop(last.set)
    assert is_woken(wakeup)
    assert in_flight.peek(9) == [0, 1, 2]


def test_a_send_that_takes_too_long_is_cancelled_and_has_a_result_of_its_own() -> None:
    wakeup = Wakeup()
    in_flight: InFlight[int] = InFlight(wakeup, timeout_seconds=0.05)
    in_flight.start([partial(send, 7, asyncio.Event())])
    assert is_woken(wakeup)
    assert in_flight.peek(1) == [-7]


def test_tasks_of_completed_sends_are_forgotten() -> None:
    in_flight: InFlight[int] = InFlight(Wakeup(), timeout_seconds=3600)
    for number in range(10):
        in_flight.start([partial(send, number)])
    while not in_flight.are_all_done():
        pass
    on_loop(lambda: None)  # callbacks of the last task come after its result
    assert in_flight._tasks == set()


# The journal ----------------------------------------------------------------------------------------------------------

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


def test_the_journal_of_a_living_process_is_not_reported_and_the_empty_one_of_a_dead_one_is_removed(
    tmp_path: Path, crash_reports: CrashReports
) -> None:
    die_with(tmp_path)
    journal = InFlightJournal(tmp_path)
    journal.hold([A])
    assert not crash_reports.count()
    journal.hold([os.urandom(32) for _ in range(MAX_KEYS + 1)])  # more than a batch takes
    journal.close()
    assert list(tmp_path.iterdir()) == []


def test_a_crash_report_is_forgotten_once_all_its_keys_are_over(tmp_path: Path, crash_reports: CrashReports) -> None:
    die_with(tmp_path, A, B)
    crash_reports.forget([A])
    assert crash_reports.count() == {A: 1, B: 1}
    crash_reports.forget([A, B])
    assert not crash_reports.count()


def test_a_folder_or_file_that_cannot_be_read_or_is_being_created_counts_as_missing(tmp_path: Path) -> None:
    die_with(tmp_path, A)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "1-new").touch()
    assert CrashReports(tmp_path).count() == {A: 1}
    assert (tmp_path / "1-new").exists()
    gone = CrashReports(tmp_path / "gone")
    gone.forget([A])
    assert not gone.count()


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
