import os
import threading
import time

from kit.processes.once import once


def test_a_value_is_made_once_also_when_several_threads_need_it_at_once():
    made = []

    @once
    def slow() -> object:
        time.sleep(0.05)
        made.append(object())
        return made[-1]

    threads = [threading.Thread(target=slow) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_a_forked_process_makes_its_own_value_also_while_its_parent_is_making_one():
    making, is_over = threading.Event(), threading.Event()

    @once
    def pid() -> int:
        if os.getpid() == parent:
            making.set()
            assert is_over.wait(60)
        return os.getpid()

    parent = os.getpid()
    thread = threading.Thread(target=pid)
    thread.start()
    assert making.wait(60)
    if not (child := os.fork()):
        os._exit(7 if pid() == os.getpid() else 1)
    status = os.waitpid(child, 0)[1]
    is_over.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 7
    assert pid() == parent
