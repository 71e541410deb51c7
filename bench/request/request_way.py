"""The way that ``bench.request.request_files`` follows: node, bridge and worker. Imported once Django is set up."""

import asyncio
import threading
import time
from datetime import timedelta
from types import TracebackType
from typing import Self

import httpx
import psutil
from django.conf import settings

from bench.request.path_parts import Parts
from bench.running.servers import PUBLISH_PATH, TOPIC, wait_until
from kit.batches.batch import Wakeup, Worker
from kit.http.connections import lasting_client
from kit.processes.leader import Term
from notifications.tasks import new_steps
from waku_bridge.messages import WakuMessage
from waku_bridge.models import OutboundReply
from waku_bridge.node import WakuNode, to_json
from waku_bridge.node.polling import PollingClient
from waku_bridge.query_topics import QueryTopics
from waku_bridge.reading.intake import Intake, Session
from waku_bridge.reading.live import LiveReader

WARM_UP_REQUESTS = 3
REST_SECONDS = 1.0  # between two requests, so that each goes alone
MAX_ANSWER_BYTES = 1 << 26
TIMEOUT_SECONDS = 5.0
DONE = (OutboundReply.State.PUBLISHED, OutboundReply.State.CONFIRMED)


class RequestWay:
    """A server in this process, and the requests of one client, which are published to its node."""

    def __init__(self, postgres: psutil.Process, *, requests: int) -> None:
        steps = Parts(postgres, clients=1, requests=requests + WARM_UP_REQUESTS, batch=1)
        self._requests = [envelope.message for envelope in steps.incoming]
        self._published = _published()
        wakeup = Wakeup()
        self._worker = Worker(new_steps(wakeup), wakeup)
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._worker.run), threading.Thread(target=self._read)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        for _ in range(WARM_UP_REQUESTS):
            self.go()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._worker.stop(timeout_seconds=5)
        for thread in self._threads:
            thread.join()

    def go(self) -> None:
        """Publish the next request, and wait until its reply is published."""
        time.sleep(REST_SECONDS)
        self._publish(self._requests.pop())
        self._published += 1
        wait_until(lambda: _published() >= self._published)

    def _publish(self, message: WakuMessage) -> None:
        url = settings.WAKU_NODES[0].rstrip("/") + PUBLISH_PATH
        httpx.post(url, json=to_json(message), timeout=TIMEOUT_SECONDS).raise_for_status()

    def _read(self) -> None:
        asyncio.run(self._read_until_over())

    async def _read_until_over(self) -> None:
        client = PollingClient(
            lasting_client(timeout_seconds=TIMEOUT_SECONDS),
            timeout_seconds=TIMEOUT_SECONDS,
            max_answer_bytes=MAX_ANSWER_BYTES,
        )
        intake = Intake(Session(QueryTopics()), keep=timedelta(days=1))
        node = WakuNode(settings.WAKU_NODES[0], client)
        reader = LiveReader(node, TOPIC, intake, suspect=lambda _: None, ring_capacity=1000)
        stopped = asyncio.Event()
        reading = asyncio.create_task(reader.run(Term(stopped)))
        await asyncio.to_thread(self._is_over.wait)
        stopped.set()
        await reading
        await intake.session.close()


def _published() -> int:
    return OutboundReply.objects.filter(state__in=DONE).count()
