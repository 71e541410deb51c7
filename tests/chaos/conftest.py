"""Whole server for the fault runs: that of the flow tests behind two real gorushes. The fakes of Apple and Google
outlive every part that is killed.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from embedded.servers.ports import free_port
from embedded.servers.postgres import EmbeddedPostgres
from embedded.servers.valkey import EmbeddedValkey
from embedded.supervisor.guard import Guard
from tests.chaos.stack import Stack, environment_for, new_database
from tests.flows.conftest import SERVER
from tests.flows.fleet import Fleet
from tests.flows.network import Network
from tests.interop.servers import Servers

GORUSH = Path(os.environ.get("PEERS", ".peers")).resolve() / "gorush"


@pytest.fixture
def stack(
    require_or_skip: Callable[[bool, str], None],
    postgres: EmbeddedPostgres,
    valkey: EmbeddedValkey,
    guard: Guard,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    """A new stack for each run, so that faults of one run do not affect the next."""
    require_or_skip(GORUSH.exists(), "there is no real gorush: `make peers` builds it")
    ports = [free_port(), free_port()]
    fleet = Fleet(tmp_path_factory.mktemp("chaos"), environment_for(new_database(postgres), valkey, ports), guard)
    stack = Stack(fleet, Servers(fleet, GORUSH, fakes_port=free_port()), ports)
    try:
        stack.start()
        yield stack
    finally:
        fleet.kill(*fleet.running)


@pytest.fixture
def network(stack: Stack) -> Iterator[Network]:
    """The network of the stack. Its record of pushes is that of the fakes of Apple and Google."""
    settings = stack.fleet.environment
    network = Network(settings["WAKU_NODES"], stack.servers.fakes_url, settings["DATABASE_URL"], SERVER.pub33)
    yield network
    network.close()
