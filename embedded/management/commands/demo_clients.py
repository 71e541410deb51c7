"""`manage.py demo_clients`: run phones that register, look each other up and notify each other, endlessly.

With an XMPP server, a server of users notifies as well. Made-up reports are published first, so that there are charts
at once.
"""

import asyncio
import logging
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from embedded.demo import people, xmpp
from embedded.demo.reports import publish_stored
from kit.http import Connections
from waku_bridge.client.session import Session
from waku_bridge.node import WakuNode
from waku_bridge.query_topics import server_identity
from xmpp_bridge.models import App

BUNDLE = "im.example.demo"
TIMEOUT_SECONDS = 10.0
POLL_SECONDS = 0.05  # short, so that the milliseconds of the log are the server's
log = structlog.get_logger(__name__)


class Command(BaseCommand):
    help = "Keep the server busy with a few clients that behave like phones. For demonstrations only."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--seed", type=int, default=people.SEED, help="who the clients are and what they do (1)")
        parser.add_argument("--pause", type=float, default=1.0, help="seconds between two events, on average (1)")
        parser.add_argument("--server", metavar="DOMAIN", help="a component that notifies users of XMPP")
        parser.add_argument("--secret-file", type=Path, help="file with the secret of that component")

    def handle(self, *_args: Any, **options: Any) -> None:
        if not settings.WAKU_NODES and not options["server"]:
            raise CommandError("WAKU_NODES is not set, and no embedded node is running. Start `manage.py demo`.")
        publish_stored()
        if options["server"]:
            logging.getLogger("slixmpp").setLevel(logging.WARNING)  # it logs every connection
            App.objects.get_or_create(slug=xmpp.APP, defaults={"app_topic": BUNDLE, "created_at": timezone.now()})
        log.info("demo_started", node=next(iter(settings.WAKU_NODES), ""), service=settings.XMPP_COMPONENT_JID)
        asyncio.run(_until_stopped(options))
        log.info("demo_stopped")


async def _until_stopped(options: dict[str, Any]) -> None:
    living = asyncio.create_task(_live(options))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, living.cancel)
    with suppress(asyncio.CancelledError):
        await living


async def _live(options: dict[str, Any]) -> None:
    pause, seed = options["pause"], options["seed"]
    async with Connections(silent_seconds=TIMEOUT_SECONDS) as client, asyncio.TaskGroup() as group:
        if settings.WAKU_NODES:
            node, topic = WakuNode(settings.WAKU_NODES[0], client), settings.WAKU_PUBSUB_TOPICS[0]
            session = Session(node, pubsub_topic=topic, poll_seconds=POLL_SECONDS)
            cast = people.make_people(seed, version=int(time.time()))
            server = server_identity().pub33
            group.create_task(people.play(session, server, cast, seed=seed, pause_seconds=pause))
        if options["server"]:
            secret = options["secret_file"].read_text(encoding="ascii").strip()
            address = options["server"], secret, settings.XMPP_COMPONENT_HOST, settings.XMPP_COMPONENT_PORT
            group.create_task(xmpp.play(settings.XMPP_COMPONENT_JID, address, pause_seconds=3 * pause))
