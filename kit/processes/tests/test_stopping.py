"""A stop that is told once is seen by everybody from then on, and never where no worker runs."""

import os

from kit.processes.stopping import WorkerStop


def test_nobody_is_told_where_no_worker_runs() -> None:
    stop = WorkerStop()
    stop.set()
    assert not stop.is_set()
    assert not stop.wait(0.01)


def test_all_see_it_however_often_they_look() -> None:
    stop = WorkerStop()
    stop.prepare()
    before = stop.is_set()
    stop.set()
    stop.set()
    assert (before, stop.is_set(), stop.is_set(), stop.wait()) == (False, True, True, True)


def test_a_child_is_told_by_its_parent() -> None:
    stop = WorkerStop()
    stop.prepare()
    if not (child := os.fork()):
        os._exit(7 if stop.wait(60) else 1)
    stop.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
