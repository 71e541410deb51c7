"""Wrapper that kills a command when the process that started it ends, also by SIGKILL: `kill_with_parent.py COMMAND…`.

    worker ──pipe──▶ this program (leads a group) ──▶ spark-submit → Java → Python
           dies ⇒ the pipe ends ⇒ the group is killed

It is started by its path and imports only the standard library. If a signal ends the command, the exit code is 128 plus
the number of the signal.
"""

import os
import signal
import subprocess
import sys
import threading


def main() -> int:
    """Run the command line, and return the command's exit code."""
    # SIGTERM goes to the whole group, so this process only waits for the command. A handler does that and not SIG_IGN,
    # which the command would inherit.
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
    # Not sys.exit, because the thread still reads.
    os._exit(main())
