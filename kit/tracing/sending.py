"""Sending of spans and errors to the collector, in batches, from a thread of its own.

Rule: no other thread waits for the collector. While it is unavailable, spans and errors are dropped.
"""

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from time import monotonic, sleep
from typing import Generic, TypeVar

import httpx
import structlog

from kit.http.asking import ask, new_client
from kit.http.connections import submit

log = structlog.get_logger(__name__)
T = TypeVar("T")

# Maximum number of waiting items. Beyond it the oldest is dropped.
MAX_WAITING = 4096
MAX_IN_A_BATCH = 512
EXPORT_SECONDS = 5.0
EVERY_SECONDS = 2.0
# Seconds that a process may take at its end for its last batches.
LAST_SECONDS = 2.0
# Seconds between two warnings about an unreachable collector.
WARN_EVERY_SECONDS = 60.0


class Sender(Generic[T]):
    """Sends items, spans or errors, of any thread. A forked process starts without the items of its parent."""

    def __init__(self, kind: str, url: str, headers: Mapping[str, str], encode: Callable[[Sequence[T]], bytes]) -> None:
        self._kind = kind
        self._url = url
        self._headers = {**headers, "Content-Type": "application/x-protobuf"}
        self._encode = encode
        self._warn_at = float("-inf")
        self._begin_anew()
        os.register_at_fork(after_in_child=self._begin_anew)
        atexit.register(self.close)

    def _begin_anew(self) -> None:
        self._waiting: deque[T] = deque(maxlen=MAX_WAITING)
        self._starting, self._sending = threading.Lock(), threading.Lock()
        self._is_started = False
        self._client = new_client()

    def add(self, item: T) -> None:
        """Queue an item, which is sent within `EVERY_SECONDS`."""
        self._waiting.append(item)
        if not self._is_started:
            self._start()

    def _start(self) -> None:
        with self._starting:
            if not self._is_started:
                self._is_started = True
                threading.Thread(target=self._run, name=f"sender of {self._kind}", daemon=True).start()

    def _run(self) -> None:
        while True:
            sleep(EVERY_SECONDS)
            self.flush()

    def flush(self) -> None:
        """Send all waiting items, without a time limit."""
        with self._sending:
            while self._waiting:
                self._send(EXPORT_SECONDS)

    def close(self) -> None:
        """Send waiting items for up to `LAST_SECONDS`."""
        until = monotonic() + LAST_SECONDS
        if self._is_started and self._sending.acquire(timeout=LAST_SECONDS):
            while self._waiting and monotonic() < until:
                self._send(max(until - monotonic(), 0.1))
            self._sending.release()

    def _send(self, seconds: float) -> None:
        """Send one batch, and drop it if the collector does not accept it."""
        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_IN_A_BATCH))]
        body = self._encode(batch)
        asking = submit(ask(self._client, "POST", self._url, seconds=seconds, content=body, headers=self._headers))
        try:
            status = asking.result(seconds).status_code
            if status >= HTTPStatus.MULTIPLE_CHOICES:
                self._warn(status, len(batch))
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            asking.cancel()
            self._warn(type(error).__name__, len(batch))

    def _warn(self, error: str | int, count: int) -> None:
        if monotonic() >= self._warn_at:
            self._warn_at = monotonic() + WARN_EVERY_SECONDS
            log.warning("collector_takes_nothing", kind=self._kind, error=error, count=count)
