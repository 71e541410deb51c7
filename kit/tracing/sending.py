"""Sending what is told to a collector, in batches and on a thread of its own. A collector that is away costs what is
told, and nobody waits for it.
"""

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from time import monotonic, sleep
from typing import Generic, TypeVar
from urllib.request import Request, urlopen

import structlog
from django.conf import settings

log = structlog.get_logger(__name__)
T = TypeVar("T")

# So much waits at most; then the oldest is dropped.
MAX_WAITING = 4096
MAX_IN_A_BATCH = 512
EXPORT_SECONDS = 5.0
# A process that ends waits so long for its last batches.
LAST_SECONDS = 2.0
# A collector that is away is told of so often.
COMPLAIN_EVERY_SECONDS = 60.0


class Sender(Generic[T]):
    """Takes spans or errors from any thread. A process that was forked meanwhile begins with none of its own."""

    def __init__(self, kind: str, url: str, headers: Mapping[str, str], encode: Callable[[Sequence[T]], bytes]) -> None:
        self._kind = kind
        self._url = url
        self._headers = {**headers, "Content-Type": "application/x-protobuf"}
        self._encode = encode
        self._complain_at = float("-inf")
        self._begin_anew()
        os.register_at_fork(after_in_child=self._begin_anew)
        atexit.register(self.close)

    def _begin_anew(self) -> None:
        self._waiting: deque[T] = deque(maxlen=MAX_WAITING)
        self._starting, self._sending = threading.Lock(), threading.Lock()
        self._is_started = False

    def add(self, item: T) -> None:
        """Take something that is to be sent within some seconds."""
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
            sleep(settings.OTLP_EVERY_SECONDS)
            self.flush()

    def flush(self) -> None:
        """Send what waits, however long that takes."""
        with self._sending:
            while self._waiting:
                self._send(EXPORT_SECONDS)

    def close(self) -> None:
        """Send what waits, for a short while."""
        until = monotonic() + LAST_SECONDS
        if self._is_started and self._sending.acquire(timeout=LAST_SECONDS):
            while self._waiting and monotonic() < until:
                self._send(max(until - monotonic(), 0.1))
            self._sending.release()

    def _send(self, seconds: float) -> None:
        """Send one batch. One that the collector does not take is dropped."""
        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_IN_A_BATCH))]
        request = Request(self._url, self._encode(batch), self._headers)  # noqa: S310 - of the settings, http or https
        try:
            with urlopen(request, timeout=seconds):  # noqa: S310 - see above
                return
        except (OSError, HTTPException) as error:
            self._complain(error, len(batch))

    def _complain(self, error: Exception, count: int) -> None:
        if monotonic() >= self._complain_at:
            self._complain_at = monotonic() + COMPLAIN_EVERY_SECONDS
            status = getattr(error, "code", type(error).__name__)
            log.warning("collector_takes_nothing", kind=self._kind, error=status, count=count)
