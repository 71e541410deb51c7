"""Minimal gorush for health checks: it answers GET requests with a status and counts them."""

from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.serving import serve


class Gorush(BaseHTTPRequestHandler):
    status = 200
    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()


def serve_gorush() -> AbstractContextManager[ThreadingHTTPServer]:
    """Serve on a free port. A test sets ``status`` of the handler class to break it. ``asked`` counts the requests."""
    return serve(Gorush)
