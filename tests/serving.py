"""HTTP servers of single tests: each runs on a free loopback port, in a thread, and logs nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class Server(ThreadingHTTPServer):
    """A server to which a worker may open all its connections at once.

    Beyond the queue of five, which is Python's default, Linux lets connections wait for seconds.
    """

    request_queue_size = 128


@contextmanager
def serve(handler: type[BaseHTTPRequestHandler]) -> Iterator[ThreadingHTTPServer]:
    """Run a server during the block. A new subclass of ``handler`` answers the requests."""
    quiet = type(handler.__name__, (handler,), {"log_message": lambda *_: None})
    with Server(("127.0.0.1", 0), quiet) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
