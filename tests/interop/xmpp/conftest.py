"""Prosody and ejabberd of this machine, started on demand. `make xmpp-interop` installs them where it may."""

import asyncio
import inspect
from collections.abc import Callable, Iterator

import pytest

from embedded.servers import prosody
from embedded.supervisor.guard import Guard
from tests.interop.xmpp import ejabberd, peers, service
from tests.interop.xmpp.peers import Peer
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


@pytest.fixture(scope="session")
def real_prosody(peer_fleet: Fleet, require_or_skip: Callable[[bool, str], None]) -> Peer:
    require_or_skip(prosody.is_installed(), "there is no Prosody: `make xmpp-interop` as root installs it")
    return peers.prosody(peer_fleet)


@pytest.fixture(scope="session")
def real_ejabberd(peer_fleet: Fleet, require_or_skip: Callable[[bool, str], None]) -> Peer:
    require_or_skip(ejabberd.is_installed(), "there is no ejabberd: `make xmpp-interop` as root installs it")
    return peers.ejabberd(peer_fleet)


@pytest.fixture(scope="session", params=["prosody", "ejabberd"])
def peer(request: pytest.FixtureRequest) -> Peer:
    return request.getfixturevalue(f"real_{request.param}")


@pytest.fixture(scope="session")
def start_service(new_fleet: NewFleet) -> Iterator[Callable[[Peer], Service]]:
    """Return ``start_service(peer)``, which starts a service of its own behind a server."""
    fleets: list[Fleet] = []

    def start(peer: Peer) -> Service:
        own = {"GORUSH_TIMEOUT_SECONDS": "3", "LOG_LEVEL": "DEBUG", **peers.component_of(peer)}
        fleets.append(new_fleet(f"xmpp_{peer.name}", **own))
        return service.start(peer, fleets[-1])

    yield start
    for fleet in fleets:
        fleet.stop(*fleet.running)


@pytest.fixture(scope="session")
def push_service(real_prosody: Peer, start_service: Callable[[Peer], Service]) -> Service:
    """The push service behind Prosody."""
    return start_service(real_prosody)


@pytest.fixture(scope="session")
def service_at_ejabberd(real_ejabberd: Peer, start_service: Callable[[Peer], Service]) -> Service:
    return start_service(real_ejabberd)


@pytest.fixture(scope="session", params=["push_service", "service_at_ejabberd"], ids=["prosody", "ejabberd"])
def either_service(request: pytest.FixtureRequest) -> Service:
    return request.getfixturevalue(request.param)
