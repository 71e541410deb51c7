"""In-flight journal: the hashes of the envelopes that a process works on, in a file that outlives the process.

    take a batch ──▶ hold: its hashes into the file ──▶ work ──▶ commit or rollback ──▶ clear: the file is empty
                                                         │
                                             the process dies: the hashes stay, and the lock on the file is free

The next process reads which envelopes a process died with, and how often. The journal costs no transaction: the kernel
keeps what was written also after SIGKILL. When the machine or container is lost, the journal is lost too, and no
envelope is a suspect.
"""

import fcntl
import os
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import structlog

from kit.processes.status import ChangeFilter

log = structlog.get_logger(__name__)
HASH_BYTES = 32


class InFlightJournal:
    """The journal of this process, in a folder with those of the other processes of this machine."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._held: list[bytes] = []
        self._change_filter = ChangeFilter()  # of the reasons why nothing is written, such as a full disk
        self.path = folder / f"{os.getpid()}-{secrets.token_hex(8)}"
        hidden = folder / f".{self.path.name}"  # an unlocked file with another name is one of a dead process
        self._file = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        hidden.rename(self.path)

    def hold(self, hashes: Iterable[bytes]) -> None:
        """Write these hashes beside those that are held. Call it before work on them begins."""
        self._held += hashes
        self._write()

    def clear(self) -> None:
        """Remove all hashes from the file."""
        self._held = []
        self._write()

    def _write(self) -> None:
        reason, content = "", b"".join(self._held)
        try:
            os.pwrite(self._file, content, 0)
            os.ftruncate(self._file, len(content))
        except OSError as error:
            reason = os.strerror(error.errno or 0)
        if self._change_filter.has_changed(reason) and reason:
            log.warning("journal_not_kept", reason=reason)

    def close(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)
        os.close(self._file)

    def count_deaths(self) -> Counter[bytes]:
        """Return how many processes died with each envelope, and remove the empty journals of dead processes."""
        counted: Counter[bytes] = Counter()
        for path in self._of_the_dead():
            counted.update(set(hashes := read(path)))
            if not hashes:
                path.unlink(missing_ok=True)
        return counted

    def forget(self, over: Iterable[bytes]) -> None:
        """Remove the journals of dead processes all of whose envelopes are in ``over``."""
        done = set(over)
        for path in self._of_the_dead():
            if done.issuperset(read(path)):
                path.unlink(missing_ok=True)

    def _of_the_dead(self) -> Iterator[Path]:
        """Yield the journals of dead processes. What cannot be read counts as missing, so that it stops no work."""
        with suppress(OSError):
            for path in self.path.parent.iterdir():
                if not path.name.startswith(".") and _is_free(path):
                    yield path


def _is_free(path: Path) -> bool:
    """Return whether no process has a lock on the file: its own has ended."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(file)


def read(path: Path) -> list[bytes]:
    """Return the hashes in a journal, or nothing if it was removed meanwhile."""
    content = b""
    with suppress(FileNotFoundError):
        content = path.read_bytes()
    return [content[at : at + HASH_BYTES] for at in range(0, len(content) - HASH_BYTES + 1, HASH_BYTES)]
