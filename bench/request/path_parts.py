"""The steps that ``bench.request.path`` measures: the batches of a real worker. Imported once Django is set up."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from time import process_time, thread_time
from typing import Any, TypeVar

import psutil
from django.utils import timezone

from bench.request.path import LOOP
from bench.running.phones import Phones
from bench.running.servers import TOPIC, cpu_seconds
from bench.running.waiting import is_waku_over
from kit.batches.batch import Step, Wakeup, Worker
from notifications.tasks import new_steps
from waku_bridge.codec.topics import message_hash
from waku_bridge.inbox import inbox
from waku_bridge.messages import Envelope, WakuMessage

T = TypeVar("T")


def timed(step: Step, seconds: dict[str, float]) -> Step:
    """Make a step count its CPU time in the thread that processes the batches, and return it."""
    for method in ("work", "committed"):
        setattr(step, method, _timed(getattr(step, method), type(step).__name__, seconds))
    return step


def _timed(method: Callable[[Any], T], name: str, seconds: dict[str, float]) -> Callable[[Any], T]:
    def call(argument: Any) -> T:
        started = thread_time()
        try:
            return method(argument)
        finally:
            seconds[name] += thread_time() - started

    return call


class Parts:
    """A server with registered clients, and requests on their way to it."""

    def __init__(self, postgres: psutil.Process, *, clients: int, requests: int, batch: int) -> None:
        self._postgres = postgres
        self._batch = batch
        phones = Phones(clients)
        inbox.store(_envelopes(phones.registrations), source="bench", now=timezone.now())
        self.incoming = _envelopes(phones.requests(requests))
        self._seconds: dict[str, float] = defaultdict(float)
        self._process_until_done()

    def run(self) -> dict[str, float]:
        """Process all requests. Return the CPU seconds of this process by part, and PostgreSQL's."""
        before, process_started, started = cpu_seconds(self._postgres), process_time(), thread_time()
        for start in range(0, len(self.incoming), self._batch):
            inbox.store(self.incoming[start : start + self._batch], source="bench", now=timezone.now())
        stored = thread_time()
        self._seconds.clear()
        spent = self._process_until_done() - before
        looking_on = thread_time() - stored
        self._seconds["inbox"] = stored - started
        self._seconds[LOOP] = process_time() - process_started - looking_on - sum(self._seconds.values())
        return {**self._seconds, "postgres": spent}

    def _process_until_done(self) -> float:
        """Process batches until every push has ended and every reply is noted. An idle worker sleeps.

        Return the CPU seconds of PostgreSQL until then. They are read before the worker closes its connection, because
        the time of a session that is just ending cannot be read.
        """
        wakeup = Wakeup()
        worker = Worker([timed(step, self._seconds) for step in new_steps(wakeup)], wakeup)
        thread = threading.Thread(target=self._process_batches, args=[worker])
        thread.start()
        while not is_waku_over():
            time.sleep(0.05)
        spent = cpu_seconds(self._postgres)
        worker.stop(timeout_seconds=30)
        thread.join()
        return spent

    def _process_batches(self, worker: Worker) -> None:
        started = thread_time()
        worker.run()
        self._seconds["batches without their steps"] = thread_time() - started - sum(self._seconds.values())


def _envelopes(messages: Sequence[WakuMessage]) -> list[Envelope]:
    return [Envelope(message_hash(TOPIC, message), TOPIC, message) for message in messages]
