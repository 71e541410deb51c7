"""`manage.py up`: run the whole server in one terminal, with embedded stand-ins for unconfigured servers."""

import os
import sys
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.management.base import BaseCommand, CommandParser

from embedded.servers import parts
from embedded.stack.addresses import Addresses, addresses_of
from embedded.stack.plan import Plan, database, services, web
from embedded.stack.running import only_one, run
from embedded.supervisor.output import MergedLog
from kit.errors import StartError, first_of
from kit.metrics import files
from pushserver.config.data_dir import refuse_a_full_disk, usable


class Command(BaseCommand):
    help = "Run the whole server: web, bridge, workers, and embedded servers for what is not configured."
    requires_system_checks = ()  # shown by this command, one line each

    def add_arguments(self, parser: CommandParser) -> None:
        cpus = len(os.sched_getaffinity(0))
        parser.add_argument("--processes", type=int, default=cpus, help="processes that process batches (CPUs)")

    def handle(self, *_args: Any, **options: Any) -> None:
        problems = list(_problems())
        for problem in problems:
            self.stderr.write(problem)
        if problems:
            sys.exit(1)
        here = addresses_of(settings.DATA_DIR)
        log = MergedLog(sys.stdout, coloured=sys.stdout.isatty())
        fault = ""  # raised below: Python 3.11.2 wraps in a group what `except*` raises, sys.exit too
        try:
            with only_one(settings.DATA_DIR):
                refuse_a_full_disk(settings.DATA_DIR)
                with usable(settings.DATA_DIR):
                    files.clear(settings.METRICS_DIR)
                    here.ports.save()
                    plan = self.plan(here, cpus=options["processes"])
                run(plan, log=log, private_key=settings.SERVER_PRIVATE_KEY)
        except* StartError as errors:
            fault = f"manage.py up: {first_of(errors)}"
        if fault:
            self.stderr.write(fault)
            sys.exit(1)

    def plan(self, here: Addresses, *, cpus: int) -> Plan:
        """Return the plan of the server. Commands based on this one add to it."""
        cluster = here.postgres if "DATABASE_URL" in settings.EMBEDDED else None
        return Plan(
            host=settings.HOST,
            port=settings.PORT,
            embedded=list(_embedded_parts(here)),
            database=database(cluster),
            web=web(settings.HOST, settings.PORT),
            services=services(cpus=cpus, has_xmpp=bool(settings.XMPP_COMPONENT_JID)),
        )


def _problems() -> Iterator[str]:
    for message in checks.run_checks():
        if message.is_serious() and not message.is_silenced():
            yield f"{message.id}: {message.msg} {message.hint or ''}".strip()


def _embedded_parts(here: Addresses) -> Iterator[parts.EmbeddedPart]:
    """Yield the embedded servers for everything that the environment does not configure."""
    if "DATABASE_URL" in settings.EMBEDDED:
        yield parts.postgres(here.postgres)
    if "REDIS_URL" in settings.EMBEDDED:
        yield parts.valkey(here.valkey)
    if "WAKU_NODES" in settings.EMBEDDED:
        topics, capacity = settings.WAKU_PUBSUB_TOPICS, settings.WAKU_RING_CAPACITY
        yield parts.waku_node(settings.DATA_DIR, here.ports["node"], topics, ring_capacity=capacity)
    if "GORUSH_URL" in settings.EMBEDDED:
        yield parts.gorush(settings.DATA_DIR, here.ports["gorush"])
