"""The merged log of many processes, in which every line names its process."""

import asyncio
from collections.abc import Callable
from typing import TextIO

COLOURS = ("36", "32", "33", "35", "34", "96", "92", "93", "95", "94")
NAME_WIDTH = 10


class MergedLog:
    """A log that gets the lines of all processes and writes them to one stream."""

    def __init__(self, stream: TextIO, *, coloured: bool) -> None:
        self._stream = stream
        self._coloured = coloured
        self._colours: dict[str, str] = {}
        self._lost = 0

    def write(self, name: str, text: str) -> None:
        """Write one line.

        A stream that takes no line, as on a full disk, raises no error, because the processes go on. Lost lines are
        counted, and the next line that the stream takes reports their number.
        """
        lost = f"{self._prefix('log')} {self._lost} lines could not be written\n" if self._lost else ""
        try:
            self._stream.write(f"{lost}{self._prefix(name)} {text}\n")
            self._stream.flush()
        except OSError:
            self._lost += 1
        else:
            self._lost = 0

    def _prefix(self, name: str) -> str:
        text = f"{name:<{NAME_WIDTH}} |"
        if not self._coloured:
            return text
        colour = self._colours.setdefault(name, COLOURS[len(self._colours) % len(COLOURS)])
        return f"\x1b[{colour}m{text}\x1b[0m"


class Lines(asyncio.Protocol):
    """A protocol that cuts the output of a pipe into lines of any length."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._rest = b""
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        *complete, self._rest = (self._rest + data).split(b"\n")
        for line in complete:
            self._give(line)

    def eof_received(self) -> None:
        self._give(self._rest)
        self._rest = b""
        self.ended.set()

    def _give(self, line: bytes) -> None:
        """Pass a line on, unless it is empty. Some programs decorate their output with empty lines."""
        text = line.decode(errors="replace").rstrip()
        if text:
            self._take(text)


class StartStatus(asyncio.Protocol):
    """A protocol that collects the output of a pipe up to its end or to a zero byte.

    The zero byte ends it while another process still holds the pipe open.
    """

    def __init__(self) -> None:
        self.complete: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._data = b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        if b"\0" in data:
            self.eof_received()

    def eof_received(self) -> None:
        if not self.complete.done():
            self.complete.set_result(self._data.decode(errors="replace"))
