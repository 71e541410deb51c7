"""`manage.py demo_clients`: run a few phones that register, look each other up and notify each other, endlessly."""

import asyncio
import signal
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import structlog
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from embedded.demo.people import SEED, DemoRun, make_people
from kit.http.connections import new_client
from waku_bridge.client import Session
from waku_bridge.identity import server_identity
from waku_bridge.node import WakuNode

NODE_TIMEOUT_SECONDS = 10.0
POLL_SECONDS = 0.05  # short, so that the milliseconds of the log are the server's
log = structlog.get_logger(__name__)


class Command(BaseCommand):
    help = "Keep the server busy with a few clients that behave like phones. For demonstrations only."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--seed", type=int, default=SEED, help="who the clients are and what they do (1)")
        parser.add_argument("--pause", type=float, default=1.0, help="seconds between two events, on average (1)")

    def handle(self, *_args: Any, **options: Any) -> None:
        if not settings.WAKU_NODES:
            raise CommandError("WAKU_NODES is not set, and no embedded node is running. Start `manage.py demo`.")
        log.info("demo_started", node=settings.WAKU_NODES[0])
        asyncio.run(until_stopped(_live(options["seed"], options["pause"])))
        log.info("demo_stopped")


async def until_stopped(live: Coroutine[Any, Any, None]) -> None:
    """Run this until it ends, or until a signal stops it."""
    living = asyncio.create_task(live)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, living.cancel)
    with suppress(asyncio.CancelledError):
        await living


async def _live(seed: int, pause_seconds: float) -> None:
    async with new_client(timeout_seconds=NODE_TIMEOUT_SECONDS) as client:
        node = WakuNode(settings.WAKU_NODES[0], client)
        session = Session(node, pubsub_topic=settings.WAKU_PUBSUB_TOPICS[0], poll_seconds=POLL_SECONDS)
        people = make_people(seed, version=int(time.time()))
        await DemoRun(session, server_identity().pub33, people, seed=seed, pause_seconds=pause_seconds).live()
