"""Servers under test: the development gorush and node in every run, and the real ones in `make interop`. These are
gorush with fakes of Apple and Google behind it, and go-waku, in the folder PEERS.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from embedded.servers.ports import free_port
from embedded.supervisor.guard import Guard
from tests.interop.nodes import Nodes, Pair
from tests.rig import server as processes
from tests.rig.peers import Server, Servers
from tests.rig.server import Fleet, NewFleet

PEERS = os.environ.get("PEERS")
StartServer = Callable[..., AbstractContextManager[Fleet]]


@pytest.fixture(scope="session")
def servers(guard: Guard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """The gorushes, which are started on demand."""
    fleet = Fleet(tmp_path_factory.mktemp("interop"), {}, guard)
    yield Servers(fleet, gorush=Path(PEERS or "").resolve() / "gorush", fakes_port=free_port())
    fleet.kill(*reversed(fleet.running))  # a gorush with a full queue would take its 30 seconds to end


@pytest.fixture(scope="session")
def real_gorush(servers: Servers, require_or_skip: Callable[[bool, str], None]) -> Server:
    require_or_skip(servers.gorush.exists(), "there is no real gorush: `make peers` builds it")
    return servers.real("gorush")


@pytest.fixture(scope="session", params=["development", pytest.param("real", marks=pytest.mark.peers)])
def server(request: pytest.FixtureRequest, servers: Servers) -> Server:
    if request.param == "development":
        return servers.development("development")
    return request.getfixturevalue("real_gorush")


@pytest.fixture(scope="session")
def nodes(guard: Guard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """The nodes, which are started on demand."""
    fleet = Fleet(tmp_path_factory.mktemp("nodes"), {}, guard)
    yield Nodes(fleet, waku=Path(PEERS or "").resolve() / "waku")
    fleet.kill(*fleet.running)


@pytest.fixture(scope="session")
def real_nodes(nodes: Nodes, require_or_skip: Callable[[bool, str], None]) -> Nodes:
    require_or_skip(nodes.waku.exists(), "there is no real Waku node: `make peers` builds it")
    return nodes


@pytest.fixture(scope="session")
def real_pair(real_nodes: Nodes) -> Pair:
    return real_nodes.real_pair()


@pytest.fixture(scope="session", params=["development", pytest.param("real", marks=pytest.mark.peers)])
def pair(request: pytest.FixtureRequest, nodes: Nodes) -> Pair:
    if request.param == "development":
        return nodes.development_pair()
    return request.getfixturevalue("real_pair")


@pytest.fixture(scope="module")
def start_server(real_gorush: Server, new_fleet: NewFleet) -> StartServer:
    """Return a function that starts every process of the server, between a node and the gorush under test, with further
    settings.
    """

    @contextmanager
    def start(node_url: str, **settings: str) -> Iterator[Fleet]:
        own = {"WAKU_NODES": node_url, "GORUSH_URL": real_gorush.url, "REPLY_DEADLINE_SECONDS": "5"}
        fleet = new_fleet("interop", **own | settings)
        fleet.start(*processes.services().values())
        yield fleet
        fleet.stop(*fleet.running)

    return start
