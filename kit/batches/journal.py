"""In-flight journal: the keys that a process works on, in a file that outlives it.

    take a batch ──▶ hold: its keys into the file ──▶ work ──▶ commit or rollback ──▶ clear: the file is empty
                                                       │
                                             the process dies: the keys stay, and the lock on the file is free

So whoever comes next learns which items a process died with, and how often, and no transaction pays for it. The file is
shared memory as long as the process lives: what was written stays, however the process ends. It is lost with the
machine, or the container, and then nothing is held against anybody.
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
        """Return the file with all its blocks, or -1, which is memory of this process alone, where there are none.

        A file with holes would have the process killed when it writes while the disk is full.
        """
        try:
            os.posix_fallocate(self._file, 0, _SIZE)
        except OSError as error:
            log.warning("journal_not_kept", reason=os.strerror(error.errno or 0))
            self.path.unlink()
            return -1
        return self._file

    def hold(self, keys: Collection[bytes]) -> None:
        """Note these keys, at most `MAX_KEYS`, before anything is done with them."""
        held = b"".join(list(keys)[:MAX_KEYS])
        self._memory[_COUNT_BYTES : _COUNT_BYTES + len(held)] = held
        self._memory[:_COUNT_BYTES] = (len(held) // KEY_BYTES).to_bytes(_COUNT_BYTES, "little")

    def add(self, keys: Collection[bytes]) -> None:
        """Note these keys beside those that are held."""
        self.hold([*_keys(self._memory[:]), *keys])

    def clear(self) -> None:
        """Note that nothing is held any more."""
        self._memory[:_COUNT_BYTES] = bytes(_COUNT_BYTES)

    def close(self) -> None:
        """Leave nothing behind."""
        self._memory.close()
        self.path.unlink(missing_ok=True)
        os.close(self._file)


class CrashReports:
    """The keys that processes of this machine died with."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def count(self) -> Counter[bytes]:
        """Return how many processes died with each key. Files of processes that held nothing are removed."""
        counted: Counter[bytes] = Counter()
        for path in self._dead():
            if keys := _read(path):
                counted.update(set(keys))
            else:
                path.unlink(missing_ok=True)
        return counted

    def forget(self, over: Iterable[bytes]) -> None:
        """Remove what was left behind by processes all of whose items are over."""
        done = set(over)
        for path in self._dead():
            if done.issuperset(_read(path)):
                path.unlink(missing_ok=True)

    def _dead(self) -> Iterator[Path]:
        """Return the files of processes that have ended. A folder or file that cannot be read is as if there were none:
        nobody's work stops for it.
        """
        try:
            with os.scandir(self._folder) as entries:
                paths = [Path(entry.path) for entry in entries]
        except OSError:
            return iter(())
        return filter(_is_dead, paths)


def _is_dead(path: Path) -> bool:
    """Return whether the process of this file has ended: then nobody has the lock."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        # Between making a file and locking it, its process has not written anything.
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
