"""`manage.py run_xmpp_bridge`: run as the component of the XMPP server that the settings name.

Any number of these processes may run: one of them is connected, and the others stand by.
"""

import asyncio
import signal
from typing import Any

import structlog
import uvloop
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from kit.exposition import serve
from kit.processes import announce_ready
from kit.processes.leader import Leader, key_of
from kit.processes.starting import wait_until_fit
from xmpp_bridge.component import Component
from xmpp_bridge.connection import Address
from xmpp_bridge.handler import StanzaHandler
from xmpp_bridge.limits import Limits, Rates
from xmpp_bridge.metrics import LEADING
from xmpp_bridge.rules import Domains

log = structlog.get_logger(__name__)
# A database that does not accept a connection within this time counts as away, and pushes are answered with `wait`.
DATABASE_CONNECT_SECONDS = 3


class Command(BaseCommand):
    help = "Connect to the XMPP server that the settings name, as its component: register devices, accept pushes."

    def handle(self, *_args: Any, **_options: Any) -> None:
        if not settings.XMPP_COMPONENT_JID:
            raise CommandError("XMPP_COMPONENT_JID and XMPP_COMPONENT_SECRET are not set: docs/xmpp.md says how.")
        connection.settings_dict["OPTIONS"]["connect_timeout"] = DATABASE_CONNECT_SECONDS
        serve()
        wait_until_fit()
        uvloop.run(_run(_component()))


def _component() -> Component:
    domain = settings.XMPP_COMPONENT_JID
    allowed = frozenset(settings.XMPP_ALLOWED_DOMAINS)
    # Our own domain is always served, for the canary. Nobody else can send from it.
    domains = Domains(frozenset(settings.XMPP_DENIED_DOMAINS), allowed | {domain} if allowed else allowed)
    stanza_handler = StanzaHandler(domain, Limits(Rates(in_all=settings.GLOBAL_LIMITS)), domains)
    host, port = settings.XMPP_COMPONENT_HOST, settings.XMPP_COMPONENT_PORT
    return Component(Address(host, port, domain, settings.XMPP_COMPONENT_SECRET), stanza_handler)


async def _run(component: Component) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    log.info("component_started", domain=settings.XMPP_COMPONENT_JID)
    announce_ready()  # standing by is enough: the component that this one replaces then stops, and releases the lock
    # The connected process stays connected while the database is away, and answers pushes with `wait`. Without a
    # component, ejabberd treats the routes as gone. A second component of the same name is refused by the XMPP server.
    leader = Leader(key_of(f"component {settings.XMPP_COMPONENT_JID}"), "push-xmpp", LEADING, survives_outage=True)
    await leader.lead(stopped, lambda term: component.run(term.ended))
    log.info("component_stopped")
