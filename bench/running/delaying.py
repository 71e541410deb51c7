"""A relay between clients and PostgreSQL that delays every piece, as a network does, in a process of its own.

A piece is the data of one write. Pieces that come while one is delayed go on together, as over a network.
"""

import multiprocessing
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PIECE_BYTES = 1 << 20


@contextmanager
def relay(path: str, milliseconds: float) -> Iterator[int]:
    """Relay to a socket that is ``milliseconds`` away, there and back. The value is a port of 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        arguments = (listener, path, milliseconds / 2000)
        process = multiprocessing.get_context("fork").Process(target=_accept, args=arguments)
        process.start()
        try:
            yield listener.getsockname()[1]
        finally:
            process.kill()


def _accept(listener: socket.socket, path: str, seconds: float) -> None:
    while True:
        client, _ = listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        server = socket.socket(socket.AF_UNIX)
        server.connect(path)
        for source, target in ((client, server), (server, client)):
            threading.Thread(target=_pass_on, args=(source, target, seconds), daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket, seconds: float) -> None:
    try:
        while piece := source.recv(PIECE_BYTES):
            time.sleep(seconds)
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        target.close()
