"""`manage.py up`: the whole server in one terminal, with an embedded stand-in for everything that is not configured."""

import os
import sys
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.management.base import BaseCommand, CommandParser

from measuring import files
from pushserver.embedded import parts
from pushserver.settings import env
from pushserver.stack.lock import only_one
from pushserver.stack.plan import Plan, services
from pushserver.stack.running import run
from pushserver.supervisor.output import MergedLog
from pushserver.supervisor.processes import ProcessSpec, StartError


class Command(BaseCommand):
    help = "Run the whole server: web, bridge, workers, scheduler, and embedded servers for what is not configured."
    requires_system_checks = ()  # shown by ourselves, one line each

    def add_arguments(self, parser: CommandParser) -> None:
        cpus = len(os.sched_getaffinity(0))
        parser.add_argument("--envelope-processes", type=int, default=cpus, help="processes that decide (CPUs)")
        parser.add_argument("--delivery-processes", type=int, default=cpus, help="processes that talk to gorush (CPUs)")

    def handle(self, *_args: Any, **options: Any) -> None:
        problems = list(_problems())
        for problem in problems:
            self.stderr.write(problem)
        if problems:
            sys.exit(1)
        log = MergedLog(sys.stdout, coloured=sys.stdout.isatty())
        try:
            with only_one(settings.DATA_DIR):
                files.clear(settings.METRICS_DIR)
                plan = self._plan(options)
                run(plan, log=log, embedded_file=settings.EMBEDDED_FILE, private_key=settings.SERVER_PRIVATE_KEY)
        except* StartError as errors:
            self.stderr.write(_first_line(errors))
            sys.exit(1)

    def _plan(self, options: dict[str, Any]) -> Plan:
        own = services(
            data_dir=settings.DATA_DIR,
            host=settings.HOST,
            port=settings.PORT,
            cpus=options["envelope_processes"],
            delivery_processes=options["delivery_processes"],
        )
        return Plan(
            data_dir=settings.DATA_DIR,
            host=settings.HOST,
            port=settings.PORT,
            embedded=list(_embedded_parts()),
            services=[*own, *self.further_processes()],
        )

    def further_processes(self) -> list[ProcessSpec]:
        return []


def _problems() -> Iterator[str]:
    for message in checks.run_checks():
        if message.is_serious() and not message.is_silenced():
            yield f"{message.id}: {message.msg} {message.hint or ''}".strip()


def _embedded_parts() -> Iterator[parts.EmbeddedPart]:
    """Asked of the environment itself: the settings may still know the addresses of an earlier start."""
    if not env.secret("DATABASE_URL"):
        yield parts.postgres(settings.DATA_DIR)
    if not env.secret("REDIS_URL"):
        yield parts.valkey(settings.DATA_DIR)
    if not env.urls("WAKU_NODES"):
        yield parts.waku_node(settings.DATA_DIR, settings.WAKU_PUBSUB_TOPICS)
    if not env.urls("GORUSH_URL"):
        yield parts.gorush(settings.DATA_DIR)


def _first_line(errors: BaseExceptionGroup[StartError]) -> str:
    """Errors of parts that started together come as a group."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"manage.py up: {error}"
