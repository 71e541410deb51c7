"""One log out of many: every line carries the name of the process it came from."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

COLOURS = ("36", "32", "33", "35", "34", "96", "92", "93", "95", "94")
NAME_WIDTH = 10


class MergedLog:
    def __init__(self, stream: TextIO, *, coloured: bool) -> None:
        self._stream = stream
        self._coloured = coloured
        self._colours: dict[str, str] = {}

    def write(self, name: str, text: str) -> None:
        """One line. Nobody reading any more is no reason to fail: the processes go on."""
        with suppress(BrokenPipeError):
            self._stream.write(f"{self._prefix(name)} {text}\n")
            self._stream.flush()

    def _prefix(self, name: str) -> str:
        text = f"{name:<{NAME_WIDTH}} |"
        if not self._coloured:
            return text
        colour = self._colours.setdefault(name, COLOURS[len(self._colours) % len(COLOURS)])
        return f"\x1b[{colour}m{text}\x1b[0m"


class Lines(asyncio.Protocol):
    """Cuts what comes out of a pipe into lines of any length."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *complete, self._rest = (self._rest + data).split(b"\n")
        for line in complete:
            self._give(line)

    def eof_received(self) -> None:
        self._give(self._rest)
        self._rest = b""

    def _give(self, line: bytes) -> None:
        """Empty lines, with which some programs decorate, would only stretch the log."""
        text = line.decode(errors="replace").rstrip()
        if text:
            self._take(text)
