"""Minimal gorush for health checks: it answers GET requests with a status and counts them."""

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
    """Serve on a free port. A test sets ``status`` of the handler class to break it. ``asked`` counts the requests."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Gorush", (Gorush,), {"asked": 0}))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()
