"""Pooler in front of PostgreSQL that treats session settings (``options``) as PgBouncer does. It refuses a connection
that sends them or, where `ignore_startup_parameters = options` is set, drops them.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.silent import SilentProxy

PROTOCOL = struct.pack("!I", 3 << 16)
# The error of PgBouncer 1.18.
REFUSAL = b"SFATAL\0C08P01\0Munsupported startup parameter: options\0\0"


class Pooler(SilentProxy):
    """Proxy that forwards everything but the ``options`` of a connection, or refuses a connection that has any."""

    def __init__(self, target: Path, *, refuses: bool) -> None:
        self._refuses = refuses
        super().__init__(target)

    def passed_on(self, data: bytes) -> bytes:
        if data[4:8] != PROTOCOL or b"\0options\0" not in data:
            return data
        fields = data[8:].rstrip(b"\0").split(b"\0")
        pairs = zip(fields[::2], fields[1::2], strict=True)
        body = PROTOCOL + b"".join(b"%b\0%b\0" % pair for pair in pairs if pair[0] != b"options") + b"\0"
        return struct.pack("!I", len(body) + 4) + body

    def answer(self, data: bytes) -> bytes:
        if not self._refuses or data[4:8] != PROTOCOL:
            return b""
        return b"E" + struct.pack("!I", len(REFUSAL) + 4) + REFUSAL


@contextmanager
def pooler(target: Path, *, refuses: bool = False) -> Iterator[Pooler]:
    running = Pooler(target, refuses=refuses)
    yield running
    running.close()
