"""Log lines of a test."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from structlog.testing import LogCapture


@contextmanager
def capture_logs(*names: str) -> Iterator[list[dict[str, Any]]]:
    """Record the log lines of this thread, of threads that start in the block, and of those with these names.

    What other tests of this process left running logs as before: it is not this test's.
    """
    mine, capture = threading.current_thread(), LogCapture()
    others = {thread for thread in threading.enumerate() if thread is not mine and thread.name not in names}
    processors = structlog.get_config()["processors"]
    before = list(processors)

    def capture_own(logger: Any, method: str, line: Any) -> Any:
        return line if threading.current_thread() in others else capture(logger, method, line)

    processors.insert(0, capture_own)  # into the same list, which bound loggers have
    try:
        yield capture.entries
    finally:
        processors[:] = before
