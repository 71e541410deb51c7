"""Prosody and ejabberd of this machine, started on demand. `make xmpp-interop` installs them where it may."""

import asyncio
import inspect
from collections.abc import Callable, Iterator

import pytest

from embedded.servers import prosody
from embedded.supervisor.guard import Guard
from tests.interop.xmpp import peers
from tests.interop.xmpp import service as processes
from tests.interop.xmpp.service import Service
from tests.rig.server import Fleet, NewFleet


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run coroutine tests of this folder, each with an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="session")
def peer_fleet(guard: Guard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("xmpp"), {}, guard)
    yield fleet
    fleet.stop(*fleet.running)


@pytest.fixture(scope="session", params=["prosody", "ejabberd"])
def service(
    request: pytest.FixtureRequest,
    peer_fleet: Fleet,
    new_fleet: NewFleet,
    require_or_skip: Callable[[bool, str], None],
) -> Iterator[Service]:
    """The push service behind each of the two servers."""
    if request.param == "prosody":
        require_or_skip(prosody.is_installed(), "there is no Prosody: `make xmpp-interop` as root installs it")
        peer = peers.prosody(peer_fleet)
    else:
        require_or_skip(peers.is_ejabberd_installed(), "there is no ejabberd: `make xmpp-interop` as root installs it")
        peer = peers.ejabberd(peer_fleet)
    own = {"GORUSH_TIMEOUT_SECONDS": "3", "LOG_LEVEL": "DEBUG", **peers.component_of(peer)}
    fleet = new_fleet(f"xmpp_{peer.name}", **own)
    yield processes.start(peer, fleet)
    fleet.stop(*fleet.running)
