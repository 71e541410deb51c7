"""Benchmark of one request on its whole way through the server, next to its floor.

The way: inbox → batches of one worker (decode, decide, push, record, reply, note) → node. Each request has one
notification. The CPU time of this process is counted, which does the work of the bridge and of a worker process, and
that of PostgreSQL. That of the development servers is not. The table shows each step of a batch, the rest of the thread
(searches for rows, commits), and the event loop with its POSTs. The floor is the request's own cryptography in a bare
loop, and two keep-alive POSTs by aiohttp. Every figure is the minimum of several rounds.
"""

import threading
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from time import process_time, thread_time
from typing import Any, TypeVar

import psutil
from django.db.models import QuerySet
from django.utils import timezone

from bench.running import floors
from bench.running.phones import Phones
from bench.running.servers import TOPIC, Around, cpu_seconds
from bench.running.tables import show_figures
from kit.batches.batch import Step, Wakeup
from kit.batches.worker import Worker
from notifications.models import Notification
from notifications.tasks import new_steps
from waku_bridge.codec.wire import message_hash
from waku_bridge.inbox import inbox
from waku_bridge.messages import Envelope, WakuMessage
from waku_bridge.models import OpenEnvelope, OpenReply

T = TypeVar("T")
ROUNDS = 8
REQUESTS, CLIENTS, BATCH = 1000, 200, 200
LOOP = "event loop: two POSTs"


def run(around: Around, _options: Namespace) -> dict[str, object]:
    """Measure, print and return the figures."""
    parts = minimum_of(ROUNDS, around.postgres)
    total_ms = sum(parts.values())
    floor = floors.measure()
    efficiency = floor.total_ms / total_ms
    figures = {"floor: cryptography": floor.crypto_ms, "floor: two POSTs": floor.http_ms, **parts, "total": total_ms}
    ratios = {"event loop / two POSTs": parts[LOOP] / floor.http_ms, "efficiency = floor / total": efficiency}
    goals = {"efficiency = floor / total": "≥ 0.5"}
    show_figures("One request, inbox → gorush → reply: CPU time, ms", figures | ratios, goals, digits=3)
    return {
        "crypto_floor_ms": floor.crypto_ms,
        "http_floor_ms": floor.http_ms,
        "gorush_post_floor_ms": floor.gorush_post_ms,
        "stages_ms": parts,
        "loop_ms": parts[LOOP],
        "total_ms": total_ms,
        "efficiency": efficiency,
    }


def minimum_of(rounds: int, postgres: psutil.Process) -> dict[str, float]:
    """Return the minimum CPU milliseconds of each part of a request over some rounds, 0 for an unneeded part."""
    measured = [Parts(postgres, clients=CLIENTS, requests=REQUESTS, batch=BATCH).run() for _ in range(rounds)]
    parts = dict.fromkeys(part for seconds in measured for part in seconds)
    return {part: min(seconds.get(part, 0.0) for seconds in measured) * 1000 / REQUESTS for part in parts}


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
        """Process batches until every reply is noted. Return the CPU seconds of PostgreSQL until then.

        They are read before the worker closes its connection, because the time of an ending session cannot be read.
        """
        wakeup = Wakeup()
        worker = Worker([self._timed(step) for step in new_steps(wakeup)], wakeup)
        thread = threading.Thread(target=self._process_batches, args=[worker])
        thread.start()
        while not _is_over():
            time.sleep(0.5)
        spent = cpu_seconds(self._postgres)
        worker.stop(timeout_seconds=30)
        thread.join()
        return spent

    def _process_batches(self, worker: Worker) -> None:
        started = thread_time()
        worker.run()
        self._seconds["batches without their steps"] = thread_time() - started - sum(self._seconds.values())

    def _timed(self, step: Step) -> Step:
        """Make a step count its CPU time in the thread that processes the batches, and return it."""
        for name in ("work", "committed"):
            setattr(step, name, partial(self._call, getattr(step, name), type(step).__name__))
        return step

    def _call(self, method: Callable[[Any], T], name: str, argument: Any) -> T:
        started = thread_time()
        try:
            return method(argument)
        finally:
            self._seconds[name] += thread_time() - started


def _envelopes(messages: Sequence[WakuMessage]) -> list[Envelope]:
    return [Envelope(message_hash(TOPIC, message), TOPIC, message) for message in messages]


def _is_over() -> bool:
    """Return whether every envelope is decided, and no notification and no reply is under way.

    Each state is searched for by itself, through its index. Reading whole tables repeatedly would count as PostgreSQL's
    work for the benchmark, and grow with the tables.
    """
    state = Notification.State
    waiting = Notification.objects.filter(state__in=[state.PENDING, state.RETRYING, state.AMBIGUOUS])
    open_ones: list[QuerySet[Any]] = [
        *(OpenEnvelope.objects.filter(state=each) for each in ("received", "postponed")),
        waiting,
        Notification.objects.filter(state="in_flight"),
        OpenReply.objects.all(),
    ]
    return not any(rows.exists() for rows in open_ones)
