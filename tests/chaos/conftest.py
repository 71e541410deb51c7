"""A whole server for the fault runs: that of the flow tests, with a gorush whose record outlives it."""

from collections.abc import Iterator

import pytest

from pushserver.embedded.postgres import EmbeddedPostgres
from pushserver.embedded.valkey import EmbeddedValkey
from pushserver.supervisor.guard import Guard
from tests.chaos.server import environment_for, start
from tests.flows.conftest import SERVER
from tests.flows.fleet import Fleet
from tests.flows.network import Network


@pytest.fixture
def fleet(
    postgres: EmbeddedPostgres, valkey: EmbeddedValkey, guard: Guard, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """A new one for each run: what one broke must not help or hinder the next."""
    running = Fleet(tmp_path_factory.mktemp("chaos"), environment_for(postgres, valkey), guard)
    try:
        start(running)
        yield running
    finally:
        running.stop(*running.running)


@pytest.fixture
def network(fleet: Fleet) -> Iterator[Network]:
    settings = fleet.environment
    network = Network(settings["WAKU_NODES"], settings["GORUSH_URL"], settings["DATABASE_URL"], SERVER.pub33)
    yield network
    network.close()
