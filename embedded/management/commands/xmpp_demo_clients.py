"""`manage.py xmpp_demo_clients`: users of an XMPP server who write to each other, and a server that speaks Push 2.0."""

import asyncio
import logging
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import orjson
import structlog
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from embedded.demo import xmpp
from embedded.management.commands.demo_clients import until_stopped
from kit.http.connections import HttpClient, new_client
from xmpp_bridge.models import App

BUNDLE = "im.example.demo"
TIMEOUT_SECONDS = 5.0
NO_PUSHES = 2**40  # a push id that is never reached: only the counts are wanted

log = structlog.get_logger(__name__)


class Command(BaseCommand):
    help = "Have two users and a server push through the XMPP component. For demonstrations only."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--users", required=True, metavar="DOMAIN", help="domain of the two users")
        parser.add_argument("--port", type=int, required=True, help="port of their server for clients, on this machine")
        parser.add_argument("--server", required=True, metavar="DOMAIN", help="the component that speaks Push 2.0")
        parser.add_argument("--secret-file", type=Path, required=True, help="file with the secret of that component")
        parser.add_argument("--pause", type=float, default=3.0, help="seconds between two events, on average (3)")

    def handle(self, *_args: Any, **options: Any) -> None:
        if not settings.XMPP_COMPONENT_JID:
            raise CommandError("XMPP_COMPONENT_JID is not set. Start `make run XMPP=1`.")
        logging.getLogger("slixmpp").setLevel(logging.WARNING)  # it logs every connection
        App.objects.get_or_create(slug=xmpp.APP, defaults={"app_topic": BUNDLE, "created_at": timezone.now()})
        log.info("xmpp_demo_started", service=settings.XMPP_COMPONENT_JID)
        asyncio.run(until_stopped(_live(options)))
        log.info("xmpp_demo_stopped")


async def _live(options: dict[str, Any]) -> None:
    juliet, romeo = (
        xmpp.User(name, options["users"], options["port"], xmpp.android(f"demo-{name}")) for name in ("Juliet", "Romeo")
    )
    secret = options["secret_file"].read_text(encoding="ascii").strip()
    address = options["server"], secret, settings.XMPP_COMPONENT_HOST, settings.XMPP_COMPONENT_PORT
    async with new_client(timeout_seconds=TIMEOUT_SECONDS) as client, asyncio.TaskGroup() as group:
        counted = partial(_count_pushes, client, next(iter(settings.GORUSH_URLS), ""))
        service = xmpp.Service(settings.XMPP_COMPONENT_JID, options["pause"], counted)
        group.create_task(xmpp.play(lambda: xmpp.converse(service, (juliet, romeo))))
        group.create_task(xmpp.play(lambda: xmpp.serve(service, address)))


async def _count_pushes(client: HttpClient, gorush_url: str, token: str) -> int | None:
    """Return the number of pushes that the development gorush recorded for a token, or None for a real gorush."""
    try:
        answer = await client.request("GET", f"{gorush_url}/dev/pushes?since={NO_PUSHES}")
    except httpx.HTTPError:
        return None
    if answer.status_code != HTTPStatus.OK:
        return None
    counts = orjson.loads(answer.content)["counts"].get(token, {})
    return int(counts.get("accepted", 0))
