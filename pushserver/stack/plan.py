"""Which processes make up the server. Pure: nothing is started here."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pushserver.embedded.parts import EmbeddedPart
from pushserver.supervisor.processes import PROJECT, ProcessSpec, Stage, python

# A push may hang at its gateway for a minute; its row is taken up again by a sweep, so nobody waits that long.
WORKER_STOP_SECONDS = 20.0
# It notices within 20 seconds that it should end, and gives Spark 10 to do so.
REPORTS_STOP_SECONDS = 40.0
DELIVERY_THREADS = 16
REPLY_THREADS = 4
# Requests wait for the database most of the time. granian warns above twice the CPUs and one.
WEB_THREADS = min(8, 2 * (os.cpu_count() or 1) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``services`` start once the database is migrated, all together."""

    data_dir: Path
    host: str
    port: int
    embedded: Sequence[EmbeddedPart]
    services: Sequence[ProcessSpec]

    @property
    def url(self) -> str:
        return f"http://{local_address(self.host)}:{self.port}"


def local_address(host: str) -> str:
    """Under which name this machine reaches a server that listens on ``host``, ready for a URL."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - the operator's choice
    return f"[{host}]" if ":" in host else host


def manage(name: str, *arguments: str, stage: Stage) -> ProcessSpec:
    return python(name, str(PROJECT / "manage.py"), *arguments, stage=stage)


def services(*, data_dir: Path, host: str, port: int, cpus: int, delivery_processes: int) -> list[ProcessSpec]:
    return [
        web(host, port),
        manage("bridge", "run_waku_bridge", stage=Stage.FRONT),
        worker("envelopes", "envelopes,maintenance", "--pool=prefork", f"--concurrency={cpus}"),
        *[
            worker(f"delivery{number}", "delivery", "--pool=threads", f"--concurrency={DELIVERY_THREADS}")
            for number in range(1, delivery_processes + 1)
        ],
        # Apart from delivery: a gateway that hangs must not keep anybody's reply. With a thread more for the canary,
        # which waits there for what all the others do.
        worker("replies", "replies,canary", "--pool=threads", f"--concurrency={REPLY_THREADS + 1}"),
        # Apart from all: a run takes minutes or hours, and only one may be under way.
        worker("reports", "reports", "--pool=threads", "--concurrency=1", stop_seconds=REPORTS_STOP_SECONDS),
        celery("beat", "beat", f"--schedule={data_dir / 'celerybeat-schedule'}", stage=Stage.SCHEDULER),
    ]


def web(host: str, port: int) -> ProcessSpec:
    address = ["--host", host, "--port", str(port), "--no-ws"]
    workers = ["--blocking-threads", str(WEB_THREADS), "--workers-kill-timeout", "5", "--respawn-failed-workers"]
    application = ["--interface", "wsgi", "--log-level", "warning", "pushserver.wsgi:application"]
    return python("web", "-m", "granian", *address, *workers, *application, stage=Stage.FRONT)


def worker(name: str, queues: str, *pool: str, stop_seconds: float = WORKER_STOP_SECONDS) -> ProcessSpec:
    arguments = [f"--hostname={name}@%h", f"--queues={queues}", "--without-gossip", "--without-mingle", *pool]
    return celery(name, "worker", *arguments, stage=Stage.WORKER, stop_seconds=stop_seconds)


def celery(name: str, *arguments: str, stage: Stage, stop_seconds: float = 10) -> ProcessSpec:
    # Root is normal in containers and on trial machines; nothing is unpickled from the broker.
    warnings = ["-W", "ignore:You're running the worker with superuser privileges"]
    command = [*warnings, "-m", "celery", "--app=pushserver", "--quiet", *arguments]
    spec = python(name, *command, stage=stage, stop_seconds=stop_seconds)
    # All of one machine count in one folder, so one of them tells: the bridge, if there is a port for it.
    return replace(spec, environment={**spec.environment, "METRICS_PORT": "0"})
