"""Benchmark of the files that one request enters, from the bridge's read to the published reply, call by call.

The bridge's reader and a worker run in this process, with PostgreSQL, Valkey, a node and a gorush. While a request is
on its way, each call of a function counts the file of that function, also when it finds nothing to do. Several requests
go one after the other. Timers (refreshes every few seconds, the time of the last read) call further files during some
of them only.
"""

import asyncio
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FrameType

import httpx
from django.conf import settings

from bench.path import Parts
from bench.running.servers import PUBLISH_PATH, TOPIC, Around, wait_until
from bench.running.tables import show
from kit.batches.batch import Wakeup
from kit.batches.worker import Worker
from kit.http import Connections
from kit.processes.leader import Term
from notifications.tasks import new_steps
from waku_bridge.dialect import to_json
from waku_bridge.messages import WakuMessage
from waku_bridge.models import OutboundReply
from waku_bridge.node import WakuNode
from waku_bridge.query_topics import QueryTopics
from waku_bridge.reading.intake import Intake, Session
from waku_bridge.reading.live import LiveReader

ROOT = f"{Path(__file__).parents[1]}/"
NOT_OURS = ("bench/", ".venv/")
GOAL = 40
WARM_UP_REQUESTS, REQUESTS = 3, 12
REST_SECONDS = 1.0  # between two requests, so that each goes alone
MAX_ANSWER_BYTES = 1 << 26
TIMEOUT_SECONDS = 5.0
DONE = (OutboundReply.State.PUBLISHED, OutboundReply.State.CONFIRMED)


class Followed:
    """The files of the functions called while it is on."""

    def __init__(self) -> None:
        self._files: set[str] | None = None

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Note a call. `threading.setprofile` calls this."""
        code, files = frame.f_code, self._files
        if files is not None and event == "call" and code.co_filename.startswith(ROOT) and code.co_name != "<module>":
            files.add(code.co_filename.removeprefix(ROOT))

    def during(self, work: Callable[[], None]) -> set[str]:
        """Return our files that are entered during this work."""
        files = self._files = set()
        work()
        self._files = None
        return {name for name in files if not name.startswith(NOT_OURS)}


def run(around: Around, _options: Namespace) -> dict[str, object]:
    """Follow requests, print and return the files that they enter."""
    followed = Followed()
    threading.setprofile(followed)  # not this thread, which only waits for the replies
    parts = Parts(around.postgres, clients=1, requests=WARM_UP_REQUESTS + REQUESTS, batch=1)
    with _reader_and_worker():
        entered = [followed.during(partial(_send, envelope.message)) for envelope in parts.incoming][WARM_UP_REQUESTS:]
    each, any_ = sorted(set.intersection(*entered)), sorted(set.union(*entered))
    title = f"Each request enters {len(each)} files (goal: {GOAL}), {len(any_)} with what timers call"
    show(title, ("file", "entered by"), {name: ["each" if name in each else "some"] for name in any_})
    return {"each": each, "any": any_}


def _send(message: WakuMessage) -> None:
    """Publish a request, and wait until its reply is published."""
    time.sleep(REST_SECONDS)
    before = _published()
    url = settings.WAKU_NODES[0].rstrip("/") + PUBLISH_PATH
    httpx.post(url, json=to_json(message), timeout=TIMEOUT_SECONDS).raise_for_status()
    wait_until(lambda: _published() > before)


def _published() -> int:
    return OutboundReply.objects.filter(state__in=DONE).count()


@contextmanager
def _reader_and_worker() -> Iterator[None]:
    """Run the reader of a bridge and a worker in threads of this process."""
    wakeup, is_over = Wakeup(), threading.Event()
    worker = Worker(new_steps(wakeup), wakeup)
    threads = [threading.Thread(target=worker.run), threading.Thread(target=lambda: asyncio.run(_read(is_over)))]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        worker.stop(timeout_seconds=5)
        for thread in threads:
            thread.join()


async def _read(is_over: threading.Event) -> None:
    connections = Connections(silent_seconds=TIMEOUT_SECONDS, max_answer_bytes=MAX_ANSWER_BYTES)
    intake = Intake(Session(QueryTopics()), keep=timedelta(days=1))
    node = WakuNode(settings.WAKU_NODES[0], connections)
    reader = LiveReader(node, TOPIC, intake, ring_capacity=1000)
    stopped = asyncio.Event()
    reading = asyncio.create_task(reader.run(Term(stopped)))
    await asyncio.to_thread(is_over.wait)
    stopped.set()
    await reading
    await intake.session.close()
    await connections.close()
