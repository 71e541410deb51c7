"""`manage.py xmpp_demo_clients`: users of an XMPP server who write to each other, and a server that speaks Push 2.0."""

import asyncio
import logging
import signal
import uuid
from contextlib import suppress
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

from embedded.demo.user_server import DemoUserServer
from embedded.demo.xmpp_users import Conversation, User
from kit.http.connections import HttpClient, new_client
from xmpp_bridge.client import Account, Device, Platform
from xmpp_bridge.client.connections import OnStanza
from xmpp_bridge.models import App

APP = "demo"
BUNDLE = "im.example.demo"
TIMEOUT_SECONDS = 5.0
NO_PUSHES = 2**40  # a push id that is never reached: only the counts are wanted
PASSWORD = "any"  # noqa: S105 - the server of the demonstration takes all

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
        App.objects.get_or_create(slug=APP, defaults={"app_topic": BUNDLE, "created_at": timezone.now()})
        asyncio.run(_live_until_stopped(options))


async def _live_until_stopped(options: dict[str, Any]) -> None:
    living = asyncio.create_task(_live(options))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, living.cancel)
    log.info("xmpp_demo_started", service=settings.XMPP_COMPONENT_JID)
    with suppress(asyncio.CancelledError):
        await living
    log.info("xmpp_demo_stopped")


async def _live(options: dict[str, Any]) -> None:
    service, pause = settings.XMPP_COMPONENT_JID, options["pause"]
    juliet, romeo = (_user(name, options["users"], options["port"]) for name in ("Juliet", "Romeo"))
    secret = options["secret_file"].read_text(encoding="ascii").strip()
    address = options["server"], secret, settings.XMPP_COMPONENT_HOST, settings.XMPP_COMPONENT_PORT
    async with new_client(timeout_seconds=TIMEOUT_SECONDS) as client, asyncio.TaskGroup() as group:
        counted = partial(_count_pushes, client, next(iter(settings.GORUSH_URLS), ""))
        conversation = Conversation(juliet, romeo, service, pause_seconds=pause, count_pushes=counted)
        group.create_task(conversation.live())
        group.create_task(DemoUserServer(address, service, app=APP, pause_seconds=pause).live())


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


def _user(name: str, domain: str, port: int) -> User:
    jid = f"{name.lower()}@{domain}"
    device = Device(Platform.FCM, f"demo{uuid.uuid4().hex}", f"demo-{name}", APP)
    return User(name, jid, device, partial(_account, jid, port))


def _account(jid: str, port: int, on_stanza: OnStanza) -> Account:
    return Account(f"{jid}/phone", PASSWORD, "127.0.0.1", port, on_stanza)
