"""Whole server for the flow tests: every process is real, with a database and a broker database of its own."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from coincurve import PrivateKey

from tests.flows import fleet as processes
from tests.flows.fleet import OF_FLOWS, Fleet, NewFleet
from tests.flows.network import Network
from tests.schedule import group
from waku_bridge.codec.keys import Identity

SERVER = Identity(PrivateKey(b"\x02" * 32))  # SERVER_PRIVATE_KEY of the test session
RUNNING = pytest.StashKey[Fleet]()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the server after the last test that shares it, so that later tests have both cores."""
    if RUNNING in item.config.stash and (nextitem is None or group(nextitem.nodeid) != group(item.nodeid)):
        fleet = item.config.stash[RUNNING]
        fleet.stop(*fleet.running)


@pytest.fixture(scope="session")
def fleet(new_fleet: NewFleet, pytestconfig: pytest.Config) -> Iterator[Fleet]:
    with served(new_fleet("flows", **OF_FLOWS)) as running:
        pytestconfig.stash[RUNNING] = running
        yield running


@contextmanager
def served(fleet: Fleet) -> Iterator[Fleet]:
    """Start the server, and stop at the end all processes that run then."""
    try:
        start(fleet)
        yield fleet
    finally:
        fleet.stop(*fleet.running)


def start(fleet: Fleet) -> None:
    node_url, gorush_url = fleet.environment["WAKU_NODES"], fleet.environment["GORUSH_URL"]
    fleet.start(processes.node(processes.port_of(node_url)), processes.gorush(processes.port_of(gorush_url)))
    fleet.start(*processes.services().values())
    for name, url in (("node", f"{node_url}/health"), ("gorush", f"{gorush_url}/healthz")):
        processes.wait_until(lambda name=name, url=url: fleet.answers(name, url), what=f"{name} at {url}")


@pytest.fixture(scope="session")
def network(fleet: Fleet) -> Iterator[Network]:
    with closing(network_of(fleet)) as network:
        yield network


def network_of(fleet: Fleet) -> Network:
    """Connect to the node, gorush and database of a server."""
    urls = [fleet.environment[name] for name in ("WAKU_NODES", "GORUSH_URL", "DATABASE_URL")]
    return Network(*urls, SERVER.pub33)
