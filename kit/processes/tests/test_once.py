import threading
import time

from kit.processes.once import once


def test_makes_a_lasting_value_once_even_when_threads_ask_together():
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
