"""Starting, breaking and mending the server of the fault runs."""

from dataclasses import replace
from uuid import uuid4

import psycopg
import redis

from pushserver.embedded.ports import free_port
from pushserver.embedded.postgres import EmbeddedPostgres
from pushserver.embedded.valkey import EmbeddedValkey
from pushserver.supervisor.processes import ProcessSpec
from tests.flows import fleet as processes
from tests.flows.fleet import Fleet, wait_for_http


def environment_for(postgres: EmbeddedPostgres, valkey: EmbeddedValkey) -> dict[str, str]:
    """Everything that takes its time in production takes less, so that the run sees the end of it."""
    database = f"chaos_{uuid4().hex[:8]}"
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}")
    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()  # queue entries of a run before
    return {
        "DATABASE_URL": postgres.url(database),
        "REDIS_URL": valkey.url.removesuffix("/0") + "/8",
        "WAKU_NODES": f"http://127.0.0.1:{free_port()}",
        "GORUSH_URL": f"http://127.0.0.1:{free_port()}",
        "GORUSH_TIMEOUT_SECONDS": "3",
        "DELIVERY_LEASE_SECONDS": "15",
        "QUEUE_PATIENCE_SECONDS": "5",
        "NOTIFICATION_TTL_SECONDS": "240",
    }


def start(fleet: Fleet) -> None:
    fleet.run(processes.migrate())
    fleet.start(processes.node(_port(fleet.environment["WAKU_NODES"])))
    fleet.start(*processes.services(fleet.folder).values())
    start_gorush(fleet)
    wait_for_http(f"{fleet.environment['WAKU_NODES']}/health")


def start_gorush(fleet: Fleet) -> None:
    """With a record on disk: it is what says how often each push was sent, across restarts."""
    url = fleet.environment["GORUSH_URL"]
    spec = processes.gorush(_port(url))
    fleet.start(replace(spec, command=[*spec.command, "--data", str(fleet.folder / "gorush.sqlite3")]))
    wait_for_http(f"{url}/healthz")


def kill_and_restart(fleet: Fleet, *names: str) -> None:
    """As a power cut does it, and a supervisor mends it."""
    fleet.kill(*names)
    fleet.start(*(_service(fleet, name) for name in names))


def _service(fleet: Fleet, name: str) -> ProcessSpec:
    return processes.services(fleet.folder)[name]


def _port(url: str) -> int:
    return int(url.rsplit(":", 1)[1])
