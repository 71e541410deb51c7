"""Recording results that a task did not wait for: one thread per process, so that none of a worker's threads sits with
a gateway that hangs.

Nothing is lost with the process: what it had not recorded is in flight until the lease ends, and then ambiguous.
"""

import atexit
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from queue import Empty, SimpleQueue
from time import monotonic

import structlog
from django.db import close_old_connections, connection

from notifications.connections import once
from notifications.delivery.recording import record_however_long_it_takes
from notifications.delivery.sending import RECORDING_PAUSE_SECONDS, Done, Put

log = structlog.get_logger(__name__)

MAX_HANDFUL = 256
# How long a process that ends waits for results: most pushes take a fraction of it.
LAST_CALL_SECONDS = 3.0

# Told which requests are concerned, in the recorder's thread.
Listener = Callable[[set[int]], object]


@dataclass(frozen=True, slots=True)
class _Late:
    done: Done
    patience: timedelta
    listener: Listener


class LateRecorder:
    def __init__(self) -> None:
        self._arrived: SimpleQueue[_Late] = SimpleQueue()
        self._changed = threading.Condition()
        self._expected = 0
        threading.Thread(target=self._run, name="late-results", daemon=True).start()
        atexit.register(self.wait, LAST_CALL_SECONDS)

    def expect(self, count: int, *, patience: timedelta, listener: Listener) -> Put:
        """Where to put that many results."""

        def put(handful: Iterable[Done]) -> None:
            for done in handful:
                self._arrived.put(_Late(done, patience, listener))

        with self._changed:
            self._expected += count
        return put

    def wait(self, seconds: float) -> bool:
        """Until everything that is expected has been recorded; False when that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self._expected == 0, seconds)

    def _run(self) -> None:
        while True:
            handful = self._take_handful()
            try:
                close_old_connections()
                _record(handful)
            except Exception as error:  # noqa: BLE001 - the thread must live; the sweep finds what was not recorded
                log.error("late_results_lost", count=len(handful), error=type(error).__name__)  # noqa: TRY400
            if self._arrived.empty():
                connection.close()  # it would be idle for most of its life
            with self._changed:
                self._expected -= len(handful)
                self._changed.notify_all()

    def _take_handful(self) -> list[_Late]:
        handful = [self._arrived.get()]
        deadline = monotonic() + RECORDING_PAUSE_SECONDS
        while len(handful) < MAX_HANDFUL:
            try:
                handful.append(self._arrived.get(timeout=max(deadline - monotonic(), 0)))
            except Empty:
                break
        return handful


def _record(handful: Sequence[_Late]) -> None:
    record_however_long_it_takes([late.done for late in handful], patience=min(late.patience for late in handful))
    for listener, request_ids in _by_listener(handful).items():
        listener(request_ids)


def _by_listener(handful: Iterable[_Late]) -> dict[Listener, set[int]]:
    concerned: defaultdict[Listener, set[int]] = defaultdict(set)
    for late in handful:
        claim, _ = late.done
        concerned[late.listener].add(claim.request_id)
    return concerned


@once
def own_recorder() -> LateRecorder:
    """That of this process."""
    return LateRecorder()
