"""`manage.py run_waku_bridge`: reads every configured node and shard into the inbox."""

import asyncio
import signal
from typing import Any

import structlog
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from kombu.exceptions import OperationalError

from measuring import port
from notifications.connections import new_client
from waku_bridge.live import LiveReader
from waku_bridge.node import WakuNode
from waku_bridge.query_topics import QueryTopics
from waku_bridge.tasks import enqueue_envelopes

READ_TIMEOUT_SECONDS = 30.0
# A page is gone from the node once it is read, so the limit only keeps a broken node from filling our memory.
MAX_PAGE_BYTES = 512 * 1024 * 1024
log = structlog.get_logger(__name__)


class Command(BaseCommand):
    help = "Read every Waku node of WAKU_NODES and write the messages that are for us into the inbox."

    def handle(self, *_args: Any, **_options: Any) -> None:
        if not settings.WAKU_NODES:
            raise CommandError("WAKU_NODES is not set, and no embedded node is running. Start `manage.py up`.")
        port.serve()
        asyncio.run(_read_all())


async def _read_all() -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    log.info("bridge_started", nodes=settings.WAKU_NODES, pubsub_topics=settings.WAKU_PUBSUB_TOPICS)
    new = new_client(timeout_seconds=READ_TIMEOUT_SECONDS, max_answer_bytes=MAX_PAGE_BYTES)
    async with new as client, asyncio.TaskGroup() as group:
        for url in settings.WAKU_NODES:
            for pubsub_topic in settings.WAKU_PUBSUB_TOPICS:
                # A set of topics each: readers run in parallel threads, and a refresh belongs to one of them.
                reader = LiveReader(WakuNode(url, client), pubsub_topic, QueryTopics(), enqueue)
                group.create_task(reader.run(stopped))
    log.info("bridge_stopped")


def enqueue(envelope_hashes: list[bytes]) -> None:
    """While the broker is away the inbox is the queue: the sweep enqueues later what is not enqueued now."""
    try:
        enqueue_envelopes(envelope_hashes)
    except OperationalError as error:
        log.warning("envelopes_not_enqueued", count=len(envelope_hashes), error=type(error).__name__)
