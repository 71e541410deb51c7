"""The plan of the processes that make up the server. The module starts nothing.

Each process has a command, and a target that a forked child of `manage.py up` runs instead.
"""

import gc
import importlib
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from django.conf import settings
from django.core.management import call_command, load_command_class

from embedded.stack.parts import EmbeddedPart
from embedded.supervisor.processes import PROJECT, ProcessSpec, StopOrder, python
from pushserver.celery import app

# A push may hang at its gateway for a minute. Another worker takes it over after its lease, so a stop waits less long.
WORKER_STOP_SECONDS = 20.0
# The worker for reports notices within 20 seconds that it should end, and gives Spark 10 seconds to end.
REPORTS_STOP_SECONDS = 40.0
# Threads wait for the database most of the time. granian warns above twice the number of CPUs plus one.
WEB_THREADS = min(8, 2 * (os.cpu_count() or 1) + 1)
# Root is normal in containers and on trial machines. Nothing from the broker is unpickled.
SUPERUSER = "You're running the worker with superuser privileges"
# Celery imports these when a worker starts.
OF_CELERY = (
    *("celery.bin.celery", "celery.apps.worker", "celery.beat", "kombu.transport.redis"),
    *("celery.app.amqp", "celery.app.control", "celery.app.events", "celery.app.log", "celery.backends.base"),
    *("celery.concurrency.prefork", "celery.concurrency.thread", "celery.worker.components", "celery.worker.consumer"),
    *("celery.worker.pidbox", "celery.worker.loops", "celery.worker.strategy", "celery.contrib.django.task"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The processes of the server.

    ``web`` starts at once, to show what it waits for. ``services`` start once the database is up to date.
    """

    host: str
    port: int
    embedded: Sequence[EmbeddedPart]
    database: ProcessSpec
    web: ProcessSpec
    services: Sequence[ProcessSpec]
    # Lines that are printed once the server is ready, in addition to those of every server.
    notes: Sequence[str] = ()

    @property
    def url(self) -> str:
        return f"http://{local_address(self.host)}:{self.port}"


def local_address(host: str) -> str:
    """Return the name under which this machine reaches a server that listens on ``host``, for a URL."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - the operator's choice
    return f"[{host}]" if ":" in host else host


def manage(name: str, *arguments: str, stop_order: StopOrder) -> ProcessSpec:
    """Describe a management command as a process."""
    spec = python(name, str(PROJECT / "manage.py"), *arguments, stop_order=stop_order)
    return replace(spec, target=partial(call_command, *arguments))


def database() -> ProcessSpec:
    """Describe the process that brings the database up to date and ends when it can be used."""
    spec = manage("database", "migrate", "--no-input", stop_order=StopOrder.WORKER)

    def bring_up_to_date() -> None:
        from embedded.stack import database  # noqa: PLC0415 - possible once apps are loaded

        database.bring_up_to_date()

    return replace(spec, target=bring_up_to_date)


def services(*, cpus: int, has_xmpp: bool = False) -> list[ProcessSpec]:
    """Describe the bridges and the workers. ``cpus`` is the number of processes that process batches."""
    waku, xmpp = (
        replace(manage(name, command, stop_order=StopOrder.FRONT), announces_ready=True)
        for name, command in (("bridge", "run_waku_bridge"), ("xmpp", "run_xmpp_bridge"))
    )
    return [
        waku,
        *([shows_no_metrics(xmpp)] if has_xmpp else []),
        worker("batches", "batches", "--pool=prefork", f"--concurrency={cpus}"),
        worker("tasks", "maintenance,keys,canary", "--pool=threads", "--concurrency=8"),
        worker("reports", "reports", "--pool=threads", "--concurrency=1", stop_seconds=REPORTS_STOP_SECONDS),
    ]


def web(host: str, port: int) -> ProcessSpec:
    """Describe the web server."""
    address = ["--host", host, "--port", str(port), "--no-ws"]
    workers = ["--blocking-threads", str(WEB_THREADS), "--workers-kill-timeout", "5", "--respawn-failed-workers"]
    application = ["--interface", "wsgi", "--log-level", "warning", "pushserver.wsgi:application"]
    arguments = (*address, *workers, *application)

    def run() -> None:
        from granian.cli import cli  # noqa: PLC0415 - its threads are none of the supervisor's

        cli([*arguments], auto_envvar_prefix="GRANIAN")

    return replace(python("web", "-m", "granian", *arguments, stop_order=StopOrder.FRONT), target=run)


def worker(name: str, queues: str, *pool: str, stop_seconds: float = WORKER_STOP_SECONDS) -> ProcessSpec:
    """Describe a Celery worker for a comma list of queues."""
    # The default heartbeat every two seconds is a good part of an idle server's cost.
    quiet = ["--without-gossip", "--without-mingle", "--heartbeat-interval=5"]
    arguments = ("--quiet", "worker", f"--hostname={name}@%h", f"--queues={queues}", *quiet, *pool)
    celery = ["-W", f"ignore:{SUPERUSER}", "-m", "celery", "--app=pushserver.worker"]
    spec = python(name, *celery, *arguments, stop_order=StopOrder.WORKER, stop_seconds=stop_seconds)

    def run() -> object:
        warnings.filterwarnings("ignore", SUPERUSER)
        return app.start([*arguments])

    return shows_no_metrics(replace(spec, target=run, announces_ready=True))


def shows_no_metrics(spec: ProcessSpec) -> ProcessSpec:
    """Close the port of the metrics. All processes of one machine count in one folder, which the bridge shows."""
    target = spec.target and partial(_without_metrics, spec.target)
    return replace(spec, target=target, environment={**spec.environment, "METRICS_PORT": "0"})


def _without_metrics(target: Callable[[], object]) -> object:
    settings.METRICS_PORT = 0
    return target()


def preload() -> None:
    """Import the modules that all children need, before they are forked: once, and in memory that they share."""
    os.environ["CELERY_SKIP_CHECKS"] = "1"  # they were shown at the start, and every worker would repeat them
    app.loader.import_default_modules()
    for module in (settings.ROOT_URLCONF, *OF_CELERY):
        importlib.import_module(module)
    commands = [("waku_bridge", "run_waku_bridge"), ("pushserver", "first_admin")]
    commands += [("xmpp_bridge", "run_xmpp_bridge")] if settings.XMPP_COMPONENT_JID else []
    for app_name, command in commands:
        load_command_class(app_name, command)
    gc.collect()
    gc.freeze()
