"""Tests of the stop signal of a worker."""

import os

from kit.processes.stopping import WorkerStop


def test_the_signal_is_never_set_outside_of_a_worker() -> None:
    stop = WorkerStop()
    stop.set()
    assert not stop.is_set()
    assert not stop.wait(0.01)


def test_the_signal_stays_set() -> None:
    stop = WorkerStop()
    stop.prepare()
    before = stop.is_set()
    stop.set()
    stop.set()
    assert (before, stop.is_set(), stop.is_set(), stop.wait()) == (False, True, True, True)


def test_a_child_receives_the_signal_of_its_parent() -> None:
    stop = WorkerStop()
    stop.prepare()
    if not (child := os.fork()):
        os._exit(7 if stop.wait(60) else 1)
    stop.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
