"""Run a command that ends with the process that started it, however that ends: `kill_with_parent.py COMMAND…`.

    worker ──pipe──▶ this program (leads a group) ──▶ spark-submit → Java → Python
           dies ⇒ the pipe ends ⇒ the group is killed

Plain Python that imports nothing of ours, started by its path. A signal that ends the command becomes 128 + its number.
"""

import os
import signal
import subprocess
import sys
import threading


def main() -> int:
    """Run the command line, and return the command's code."""
    # Who stops us stops the whole group: we wait for the command. It does not inherit a handler, as it would SIG_IGN.
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    with subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL) as process:
        threading.Thread(target=_end_with_the_pipe, daemon=True).start()
        code = process.wait()
    return 128 - code if code < 0 else code


def _end_with_the_pipe() -> None:
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    # Not sys.exit: the thread still reads.
    os._exit(main())
