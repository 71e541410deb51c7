"""The plan of the processes that make up the server. The module starts nothing."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from embedded.servers.parts import EmbeddedPart
from embedded.servers.postgres import EmbeddedPostgres
from embedded.stack import children
from embedded.supervisor.processes import PROJECT, ProcessSpec, StopOrder, python

# A push may hang at its gateway for a minute. Another worker takes it over after its lease, so a stop waits less long.
WORKER_STOP_SECONDS = 20.0
# The worker for reports notices within 20 seconds that it should end, and gives Spark 10 seconds to end.
REPORTS_STOP_SECONDS = 40.0
# Threads wait for the database most of the time. granian warns above twice the number of CPUs plus one.
WEB_THREADS = min(8, 2 * (os.cpu_count() or 1) + 1)


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
    # Processes that run once, to their end, when the server is ready. Nothing waits for them.
    afterwards: Sequence[ProcessSpec] = ()

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
    return replace(spec, target=partial(children.run_command, arguments))


def database(embedded: EmbeddedPostgres | None) -> ProcessSpec:
    """Describe the process that brings the database up to date and ends when it can be used."""
    spec = manage("database", "migrate", "--no-input", stop_order=StopOrder.WORKER)
    return replace(spec, target=partial(children.run_database, embedded))


def services(*, cpus: int, has_xmpp: bool = False) -> list[ProcessSpec]:
    """Describe the bridges and the workers. ``cpus`` is the number of processes that process batches."""
    xmpp = shows_no_metrics(
        replace(manage("xmpp", "run_xmpp_bridge", stop_order=StopOrder.FRONT), announces_ready=True)
    )
    return [
        replace(manage("bridge", "run_waku_bridge", stop_order=StopOrder.FRONT), announces_ready=True),
        *([xmpp] if has_xmpp else []),
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
    return replace(
        python("web", "-m", "granian", *arguments, stop_order=StopOrder.FRONT),
        target=partial(children.run_web, arguments),
    )


def worker(name: str, queues: str, *pool: str, stop_seconds: float = WORKER_STOP_SECONDS) -> ProcessSpec:
    """Describe a Celery worker for a comma list of queues."""
    # The default heartbeat every two seconds is a good part of an idle server's cost.
    quiet = ["--without-gossip", "--without-mingle", "--heartbeat-interval=5"]
    arguments = ("--quiet", "worker", f"--hostname={name}@%h", f"--queues={queues}", *quiet, *pool)
    celery = ["-W", f"ignore:{children.SUPERUSER}", "-m", "celery", "--app=pushserver.worker"]
    spec = python(name, *celery, *arguments, stop_order=StopOrder.WORKER, stop_seconds=stop_seconds)
    target = partial(children.run_celery, arguments)
    return shows_no_metrics(replace(spec, target=target, announces_ready=True))


def shows_no_metrics(spec: ProcessSpec) -> ProcessSpec:
    """Close the port of the metrics. All processes of one machine count in one folder, which the bridge shows."""
    target = spec.target and partial(children.without_metrics, spec.target)
    return replace(spec, target=target, environment={**spec.environment, "METRICS_PORT": "0"})
