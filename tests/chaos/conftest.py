"""World of the fault runs, a new one for each run, so that faults of one do not affect the next."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import pytest

from embedded.servers import prosody
from embedded.supervisor.guard import Guard
from tests.chaos.world import World, open_world
from tests.rig.folders import open_folder
from tests.rig.peers import GORUSH
from tests.rig.server import NewFleet

NewWorld = Callable[..., AbstractContextManager[World]]


@pytest.fixture
def new_world(require_or_skip: Callable[[bool, str], None], new_fleet: NewFleet, guard: Guard) -> Iterator[NewWorld]:
    require_or_skip(GORUSH.exists(), "there is no real gorush: `make peers` builds it")
    require_or_skip(prosody.is_installed(), "there is no Prosody: `make xmpp-interop` as root installs it")
    with open_folder() as folder:
        yield partial(open_world, new_fleet, folder, guard)
