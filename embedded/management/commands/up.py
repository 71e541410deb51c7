"""`manage.py up`: run the whole server in one terminal, with embedded stand-ins for unconfigured servers."""

import os
import sys
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.management.base import BaseCommand, CommandParser

from embedded.stack.parts import addresses_of, parts_of
from embedded.stack.plan import Plan, database, services, web
from embedded.stack.running import only_one, refuse_a_full_disk, run
from embedded.supervisor.output import MergedLog
from kit.exposition import clear
from kit.processes import StartError
from pushserver.config.data_dir import usable


class Command(BaseCommand):
    help = "Run the whole server: web, bridge, workers, and embedded servers for what is not configured."
    requires_system_checks = ()  # shown by this command, one line each

    def add_arguments(self, parser: CommandParser) -> None:
        cpus = len(os.sched_getaffinity(0))
        parser.add_argument("--processes", type=int, default=cpus, help="processes that process batches (CPUs)")

    def handle(self, *_args: Any, **options: Any) -> None:
        found = [each for each in checks.run_checks() if each.is_serious() and not each.is_silenced()]
        if found:
            sys.exit("\n".join(f"{each.id}: {each.msg} {each.hint or ''}".strip() for each in found))
        try:
            with only_one(settings.DATA_DIR):
                refuse_a_full_disk(settings.DATA_DIR)
                with usable(settings.DATA_DIR):
                    clear(settings.METRICS_DIR)
                    addresses_of(settings.DATA_DIR).ports.save()
                    plan = self.plan(options["processes"])
                run(plan, MergedLog(sys.stdout, coloured=sys.stdout.isatty()), settings.SERVER_PRIVATE_KEY)
        except StartError as error:
            sys.exit(f"manage.py up: {error}")

    def plan(self, cpus: int) -> Plan:
        """Return the plan of the server. Commands based on this one add to it."""
        return Plan(
            host=settings.HOST,
            port=settings.PORT,
            embedded=list(parts_of(settings.DATA_DIR)),
            database=database(),
            web=web(settings.HOST, settings.PORT),
            services=services(cpus=cpus, has_xmpp=bool(settings.XMPP_COMPONENT_JID)),
        )
