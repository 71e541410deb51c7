"""Whole server for the flow tests: every process is real, with a database and a broker database of its own."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.rig.network import Network, network_of
from tests.rig.server import OF_FLOWS, Fleet, NewFleet, served, start
from tests.rig.suite import group

RUNNING = pytest.StashKey[Fleet]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start the server again for the second group of tests that share it in one process."""
    if "fleet" in getattr(item, "fixturenames", ()) and RUNNING in item.config.stash:
        fleet = item.config.stash[RUNNING]
        if not fleet.running:
            start(fleet)


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


@pytest.fixture(scope="session")
def network(fleet: Fleet) -> Iterator[Network]:
    with closing(network_of(fleet)) as network:
        yield network
