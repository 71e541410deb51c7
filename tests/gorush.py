"""As much of a gorush as answers whether it is there."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class Gorush(BaseHTTPRequestHandler):
    status = 200
    asked: int

    def do_GET(self) -> None:
        type(self).asked += 1
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        pass


@contextmanager
def serve_gorush() -> Iterator[ThreadingHTTPServer]:
    """A test breaks it by the ``status`` of its handler class, which counts in ``asked``."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Gorush", (Gorush,), {"asked": 0}))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()
