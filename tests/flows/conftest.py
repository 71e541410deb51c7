"""A whole server for the flow tests: every process real, on a database and a broker database of its own."""

from collections.abc import Iterator

import psycopg
import pytest
from coincurve import PrivateKey
from psycopg import sql

from pushserver.embedded.ports import free_port
from pushserver.embedded.postgres import EmbeddedPostgres
from pushserver.embedded.valkey import EmbeddedValkey
from pushserver.supervisor.guard import Guard
from tests.flows import fleet as processes
from tests.flows.fleet import Fleet
from tests.flows.network import Network
from waku_bridge.codec.keys import Identity

DATABASE = "flows"
SERVER = Identity(PrivateKey(b"\x02" * 32))  # SERVER_PRIVATE_KEY of the test session


@pytest.fixture(scope="session")
def environment(
    postgres: EmbeddedPostgres, valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    make_database(postgres, DATABASE)
    return environment_of(postgres.url(DATABASE), f"{valkey.url.removesuffix('/0')}/7", tmp_path_factory)


def make_database(postgres: EmbeddedPostgres, name: str) -> None:
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))


def environment_of(database_url: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Patience and lease are short, so that a test of a killed worker need not wait for two minutes."""
    return {
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "WAKU_NODES": f"http://127.0.0.1:{free_port()}",
        "GORUSH_URL": f"http://127.0.0.1:{free_port()}",
        "GORUSH_TIMEOUT_SECONDS": "3",
        "DELIVERY_LEASE_SECONDS": "15",
        "REPLY_DEADLINE_SECONDS": "5",
        "QUEUE_PATIENCE_SECONDS": "5",
        "METRICS_DIR": str(tmp_path_factory.mktemp("metrics")),
    }


@pytest.fixture(scope="session")
def fleet(environment: dict[str, str], guard: Guard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    running = Fleet(tmp_path_factory.mktemp("flows"), environment, guard)
    try:
        start(running)
        yield running
    finally:
        running.stop(*running.running)


def start(fleet: Fleet) -> None:
    node_url, gorush_url = fleet.environment["WAKU_NODES"], fleet.environment["GORUSH_URL"]
    fleet.run(processes.migrate())
    fleet.start(processes.node(_port(node_url)), processes.gorush(_port(gorush_url)))
    fleet.start(*processes.services(fleet.folder).values())
    processes.wait_for_http(f"{node_url}/health", f"{gorush_url}/healthz")


def _port(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


@pytest.fixture(scope="session")
def network(fleet: Fleet) -> Iterator[Network]:
    settings = fleet.environment
    network = Network(settings["WAKU_NODES"], settings["GORUSH_URL"], settings["DATABASE_URL"], SERVER.pub33)
    yield network
    network.close()
