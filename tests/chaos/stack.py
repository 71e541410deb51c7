"""Server of the fault runs and the gorushes and providers behind it: starting, breaking and mending them."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

import orjson
import psycopg
import redis

from embedded.servers.ports import free_port
from embedded.servers.postgres import EmbeddedPostgres
from embedded.servers.valkey import EmbeddedValkey
from tests.flows import fleet as processes
from tests.flows.fleet import Fleet, wait_for_http
from tests.interop.servers import Servers, ask

# Fakes and gorush log tokens by design, as they act for Apple and Google.
PEERS = ("gorush", "fakes")
# The settings that docs/gorush.md recommends.
SETTINGS = {
    "CORE_WORKER_NUM": "256",
    "CORE_QUEUE_NUM": "8192",
    "IOS_MAX_CONCURRENT_PUSHES": "256",
    "LOG_HIDE_TOKEN": "true",
    "LOG_HIDE_MESSAGES": "true",
}


def new_database(postgres: EmbeddedPostgres) -> str:
    """Make an empty database, and return its URL."""
    database = f"chaos_{uuid4().hex[:8]}"
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}")
    return postgres.url(database)


def environment_for(database_url: str, valkey: EmbeddedValkey, ports: Sequence[int]) -> dict[str, str]:
    """Return settings with shorter timeouts than in production, so that a run reaches the end of each."""
    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()  # queue entries of an earlier run
    return {
        "DATABASE_URL": database_url,
        "REDIS_URL": valkey.url.removesuffix("/0") + "/8",
        "WAKU_NODES": f"http://127.0.0.1:{free_port()}",
        "GORUSH_URL": ",".join(f"http://127.0.0.1:{port}" for port in ports),
        "GORUSH_TIMEOUT_SECONDS": "5",
        # Every push is counted, so none may be coalesced with another one.
        "MAX_OPEN_PER_ROUTE": "10000",
        **{f"{name}_LIMITS": "1000000/1,100000000/60" for name in ("ROUTE", "SENDER", "GLOBAL")},
    }


@dataclass(frozen=True, slots=True)
class Stack:
    """Several gorushes, by their number in ``ports``, in front of the same fakes of Apple and Google."""

    fleet: Fleet
    servers: Servers
    ports: Sequence[int]

    def start(self) -> None:
        node_url = self.fleet.environment["WAKU_NODES"]
        self.fleet.run(processes.migrate())
        self.fleet.start(processes.node(processes.port_of(node_url)))
        self.start_gorush(*range(len(self.ports)))
        self.start_workers(*processes.services())
        wait_for_http(f"{node_url}/health")

    def start_gorush(self, *numbers: int) -> None:
        for number in numbers:
            self.servers.real(f"gorush{number}", port=self.ports[number], **SETTINGS)

    def kill_gorush(self, *numbers: int) -> None:
        self.fleet.kill(*(f"gorush{number}" for number in numbers))

    def stop_gorush(self, *numbers: int) -> None:
        self.fleet.stop(*(f"gorush{number}" for number in numbers))

    def start_workers(self, *names: str) -> None:
        services = processes.services()
        self.fleet.start(*(services[name] for name in names))

    def break_providers(self, **faults: object) -> None:
        """Set faults of the providers, and fail if they were not accepted, as the test would otherwise prove
        nothing.
        """
        answer = ask(self.servers.fakes_url, "POST", "/dev/faults", orjson.dumps(faults))
        assert answer.body.items() >= faults.items()

    def mend_providers(self) -> None:
        ask(self.servers.fakes_url, "DELETE", "/dev/faults")

    def own_logs(self) -> dict[str, str]:
        """Return the logs of the server itself, without those of PEERS."""
        return {name: text for name, text in self.fleet.logs().items() if not name.startswith(PEERS)}
