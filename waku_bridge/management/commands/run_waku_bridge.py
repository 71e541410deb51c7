"""`manage.py run_waku_bridge`: read every configured node, store and shard into the inbox.

Any number of these processes may run: one of them reads, and the others stand by.
"""

import asyncio
import os
import signal
import sys
from datetime import timedelta
from typing import Any

import structlog
import uvloop
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from kit.display import host_of
from kit.exposition import serve
from kit.http import Connections
from kit.processes import announce_ready
from kit.processes.starting import wait_until_fit
from waku_bridge.reading.bridge import MAX_PAGE_BYTES, STOP_SECONDS, TIMEOUT_SECONDS, Bridge, Plan

# The process exits this long after a signal. A thread that waits for a hanging database cannot be stopped, and
# supervisors kill after ten seconds.
LAST_SECONDS = STOP_SECONDS + 4.0
# The stretch of the past that is read for a topic that is new.
BACKFILL = timedelta(minutes=5)
# Limit of unopened envelopes in the inbox, of postponed ones, and of those that wait for a key.
MAX_WAITING = 200_000

log = structlog.get_logger(__name__)


class Command(BaseCommand):
    help = "Read every Waku node and store of the settings, and write the messages that are for us into the inbox."

    def handle(self, *_args: Any, **_options: Any) -> None:
        if not settings.WAKU_NODES:
            raise CommandError("WAKU_NODES is not set, and no embedded node is running. Start `manage.py up`.")
        serve()
        wait_until_fit()
        uvloop.run(_read_all(_plan()))


def _plan() -> Plan:
    return Plan(
        nodes=settings.WAKU_NODES,
        store_nodes=settings.WAKU_STORE_NODES,
        pubsub_topics=settings.WAKU_PUBSUB_TOPICS,
        ring_capacity=settings.WAKU_RING_CAPACITY,
        # The hash of a message that is read again after an outage must still be kept, or it would be processed twice.
        recovery=timedelta(days=settings.ENVELOPE_RETENTION_DAYS - 1),
        backfill=BACKFILL,
        keep=timedelta(days=settings.ENVELOPE_RETENTION_DAYS),
        max_waiting=MAX_WAITING,
    )


async def _read_all(plan: Plan) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, _stop, stopped)
    nodes, stores = (list(map(host_of, urls)) for urls in (plan.nodes, plan.store_nodes))
    log.info("bridge_started", nodes=nodes, store_nodes=stores, pubsub_topics=plan.pubsub_topics)
    async with Connections(silent_seconds=TIMEOUT_SECONDS, max_answer_bytes=MAX_PAGE_BYTES) as connections:
        announce_ready()  # before the lock is held: the bridge that this one replaces stops then, and releases the lock
        await Bridge(plan, connections).run(stopped)
    log.info("bridge_stopped")


def _stop(stopped: asyncio.Event) -> None:
    stopped.set()
    asyncio.get_running_loop().call_later(LAST_SECONDS, _leave)


def _leave() -> None:
    log.error("bridge_left_without_its_threads")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
