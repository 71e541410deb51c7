"""Proxy in front of PostgreSQL that can fall silent: it keeps connections open, takes bytes and answers nothing, like a
firewall in front of a host that vanished.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class SilentProxy:
    """Proxy on 127.0.0.1 that forwards bytes to the Unix socket ``target`` and back while ``speaks`` is set."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listener]
        self.port: int = self._listener.getsockname()[1]
        self.speaks = threading.Event()
        self.speaks.set()
        self.swallowed = threading.Event()  # set once bytes came that get no answer
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._target))
                self._open += [client, server]
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not self.speaks.is_set():
                    self.swallowed.set()
                    return  # both ends stay open
                if answer := self.answer(data):
                    source.sendall(answer)
                    break
                sink.sendall(self.passed_on(data))
            if self.speaks.is_set():
                sink.shutdown(socket.SHUT_WR)

    def passed_on(self, data: bytes) -> bytes:
        """Return the bytes to forward to the server for ``data`` from the client."""
        return data

    def answer(self, data: bytes) -> bytes:  # noqa: ARG002 - subclasses use it
        """Return an answer to send instead of forwarding ``data``, before the connection is closed; empty for none."""
        return b""

    def close(self) -> None:
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@contextmanager
def silent_proxy(target: Path) -> Iterator[SilentProxy]:
    proxy = SilentProxy(target)
    yield proxy
    proxy.close()
