"""Whole server for the fault runs: that of the flow tests behind two real gorushes. The fakes of Apple and Google
outlive every part that is killed.
"""

from collections.abc import Callable, Iterator

import pytest

from tests.chaos.stack import GORUSH, Stack, new_stack
from tests.rig.network import Network
from tests.rig.server import SERVER, NewFleet


@pytest.fixture
def idle_stack(require_or_skip: Callable[[bool, str], None], new_fleet: NewFleet) -> Iterator[Stack]:
    """A new stack for each run, so that faults of one run do not affect the next. It is not started yet."""
    require_or_skip(GORUSH.exists(), "there is no real gorush: `make peers` builds it")
    stack = new_stack(new_fleet, "chaos")
    yield stack
    stack.fleet.kill(*stack.fleet.running)


@pytest.fixture
def stack(idle_stack: Stack) -> Stack:
    idle_stack.start()
    return idle_stack


@pytest.fixture
def network(stack: Stack) -> Iterator[Network]:
    """The network of the stack. Its record of pushes is that of the fakes of Apple and Google."""
    settings = stack.fleet.environment
    network = Network(settings["WAKU_NODES"], stack.servers.fakes_url, settings["DATABASE_URL"], SERVER.pub33)
    yield network
    network.close()
