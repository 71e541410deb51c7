"""Leftover servers, which outlived a killed supervisor and have to be stopped.

The caller holds the lock on DATA_DIR. So a server that still works in it belongs to no other supervisor.
"""

from pathlib import Path

import psutil

STOP_SECONDS = 20.0


def stop_leftover(pid_file: Path, folder: Path) -> None:
    """Stop the server that ``pid_file`` names if it works in ``folder``, and remove the file.

    The working folder distinguishes it from an unrelated process with the same id: in a container, ids repeat at every
    start.
    """
    process = _server_of(pid_file, folder)
    if process is not None:
        process.terminate()
        if process in psutil.wait_procs([process], timeout=STOP_SECONDS)[1]:
            process.kill()
    pid_file.unlink(missing_ok=True)


def _server_of(pid_file: Path, folder: Path) -> psutil.Process | None:
    try:
        process = psutil.Process(int(pid_file.read_text(encoding="utf-8").split("\n", 1)[0]))
        return process if Path(process.cwd()) == folder.resolve() else None
    except (OSError, ValueError, psutil.Error):
        return None
