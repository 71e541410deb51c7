"""In-flight journal: the keys of the items that a process works on, in a file that outlives the process.

    take a batch ──▶ hold: its keys into the file ──▶ work ──▶ commit or rollback ──▶ clear: the file is empty
                                                       │
                                             the process dies: the keys stay, and the lock on the file is free

The next process reads which items a process died with, and how often. The journal costs no transaction: the file is
mapped into memory, and the kernel keeps the written keys also after SIGKILL. When the machine or container is lost, the
journal is lost too, and no item is a suspect.
"""

import fcntl
import os
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from mmap import mmap
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)
KEY_BYTES = 32
MAX_KEYS = 256
_COUNT_BYTES = 4
_SIZE = _COUNT_BYTES + MAX_KEYS * KEY_BYTES


class InFlightJournal:
    """The journal of this process. Keys have 32 bytes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = folder / f"{os.getpid()}-{secrets.token_hex(8)}"
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._memory = mmap(self._allocated(), _SIZE)

    def _allocated(self) -> int:
        """Return the file with all its blocks allocated, or -1 (memory of this process only) when the disk is full.

        With unallocated blocks, the kernel would kill the process when it writes to the mapped file on a full disk.
        """
        try:
            os.posix_fallocate(self._file, 0, _SIZE)
        except OSError as error:
            log.warning("journal_not_kept", reason=os.strerror(error.errno or 0))
            self.path.unlink()
            return -1
        return self._file

    def hold(self, keys: Collection[bytes]) -> None:
        """Write these keys in place of those that are held, at most `MAX_KEYS`. Call it before work on them begins."""
        held = b"".join(list(keys)[:MAX_KEYS])
        self._memory[_COUNT_BYTES : _COUNT_BYTES + len(held)] = held
        self._memory[:_COUNT_BYTES] = (len(held) // KEY_BYTES).to_bytes(_COUNT_BYTES, "little")

    def add(self, keys: Collection[bytes]) -> None:
        """Write these keys beside those that are held."""
        self.hold([*_keys(self._memory[:]), *keys])

    def clear(self) -> None:
        """Remove all keys from the file."""
        self._memory[:_COUNT_BYTES] = bytes(_COUNT_BYTES)

    def close(self) -> None:
        """Remove the file."""
        self._memory.close()
        self.path.unlink(missing_ok=True)
        os.close(self._file)


class CrashReports:
    """The keys in journals of processes of this machine that have died."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def count(self) -> Counter[bytes]:
        """Return the number of processes that died with each key, and remove the empty journals of dead processes."""
        counted: Counter[bytes] = Counter()
        for path in self._dead():
            if keys := _read(path):
                counted.update(set(keys))
            else:
                path.unlink(missing_ok=True)
        return counted

    def forget(self, over: Iterable[bytes]) -> None:
        """Remove the journals of dead processes all of whose keys are in ``over``."""
        done = set(over)
        for path in self._dead():
            if done.issuperset(_read(path)):
                path.unlink(missing_ok=True)

    def _dead(self) -> Iterator[Path]:
        """Return the journals of processes that have ended. A folder or file that cannot be read counts as missing, so
        that it stops no work.
        """
        try:
            with os.scandir(self._folder) as entries:
                paths = [Path(entry.path) for entry in entries]
        except OSError:
            return iter(())
        return filter(_is_dead, paths)


def _is_dead(path: Path) -> bool:
    """Return whether the process of a journal has ended. Until then it has a lock on the file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        # A file of another size is new: its process has not locked it yet, and has written nothing.
        return os.fstat(file).st_size == _SIZE
    finally:
        os.close(file)


def _read(path: Path) -> list[bytes]:
    try:
        return _keys(path.read_bytes())
    except FileNotFoundError:
        return []


def _keys(content: bytes) -> list[bytes]:
    count = int.from_bytes(content[:_COUNT_BYTES], "little")
    end = _COUNT_BYTES + count * KEY_BYTES
    return [content[at : at + KEY_BYTES] for at in range(_COUNT_BYTES, end, KEY_BYTES)]
