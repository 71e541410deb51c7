"""World of real parts: Messengers of status-go, a go-waku that they share, this server, and the real gorush with our
fakes of Apple and Google.
"""

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.interop.conftest import PEERS, StartServer
from tests.interop.nodes import Nodes, address_of
from tests.interop.status.messengers import APN, Messenger, app_key
from tests.rig import server as processes
from tests.rig.peers import Server, Servers
from tests.rig.server import Fleet, wait_until

PROCESSES = ("bridge", "batches", "tasks")
GORUSH = "status-gorush"  # the name of gorush's process
# SERVER_PRIVATE_KEY of the test session.
SERVER_KEY = app_key(b"\x02" * 32)
# After this time without a push no more are expected: senders have repeated requests without an answer by then.
QUIET_SECONDS = 3.0


@dataclass(slots=True)
class World:
    """Parts of a scenario: people, the server's processes, and the record of pushes at Apple and Google."""

    program: Path
    folder: Path
    node_url: str
    server: Fleet
    servers: Servers
    gorush: Server
    _people: list[Messenger] = field(default_factory=list)

    def messenger(self, **facts: Any) -> Messenger:
        """Start a device of a new user."""
        folder = self.folder / f"{len(self._people)}"
        messenger = Messenger(self.program, folder, **{"peers": [address_of(self.node_url)]} | facts)
        self._people.append(messenger)
        messenger.start()
        return messenger

    def service(self) -> str:
        """Start a node that light clients depend on, and return its address."""
        return self.messenger(is_service=True).address

    def phone(self, *, token_type: int = APN, **facts: Any) -> tuple[Messenger, str]:
        """Start a device that is registered with the server, and return it with its device token."""
        messenger, token = self.messenger(**facts), new_token(token_type)
        messenger.register(SERVER_KEY, token, token_type=token_type)
        return messenger, token

    def acquainted(self) -> tuple[Messenger, Messenger, str]:
        """Start a registered device that was woken by a message, and return its writer, the device and its token."""
        bob, token = self.phone()
        alice = self.messenger()
        alice.ask("send", key=bob.key, text="Before")
        self.wait_for_pushes(token)
        return alice, bob, token

    def kill(self, *names: str) -> None:
        """Kill processes of the server, as a power cut does."""
        self.server.kill(*names)

    def start(self, *names: str) -> None:
        services = processes.services()
        self.server.start(*(services[name] for name in names))

    def restart(self, **settings: str) -> None:
        """Kill all of the server and start it with these settings."""
        self.kill(*PROCESSES)
        self.server.environment.update(settings)
        self.start(*PROCESSES)

    def stop_gorush(self) -> None:
        self.servers.fleet.kill(GORUSH)

    def start_gorush(self) -> None:
        self.servers.real(GORUSH, port=processes.port_of(self.gorush.url))

    def pushes(self, token: str) -> list[dict[str, Any]]:
        """Return the pushes to one device that Apple or Google accepted."""
        return [push for push in self.gorush.pushes() if push["token"] == token and not push["error"]]

    def wait_for_pushes(self, token: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until there are ``count`` pushes to one device and no more come, and return them."""
        wait_until(lambda: len(self.pushes(token)) >= count, what=f"{count} pushes")
        self.settle()
        found = self.pushes(token)
        assert len(found) == count, [(push["received_ms"], push["collapse_id"], push["data"]) for push in found]
        return found

    def settle(self) -> None:
        """Wait until no push was sent for `QUIET_SECONDS`."""
        last = self.gorush.last_push()
        deadline = time.monotonic() + QUIET_SECONDS
        while time.monotonic() < deadline:
            time.sleep(0.1)
            if (now := self.gorush.last_push()) != last:
                last, deadline = now, time.monotonic() + QUIET_SECONDS

    def close(self) -> None:
        for messenger in self._people:
            messenger.kill()


def new_token(token_type: int) -> str:
    """Return a device token in the format of Apple or Google."""
    return secrets.token_hex(32) if token_type == APN else f"{secrets.token_urlsafe(16)}:{secrets.token_urlsafe(105)}"


@pytest.fixture(scope="session")
def status_program(require_or_skip: Callable[[bool, str], None]) -> Path:
    program = Path(PEERS or "").resolve() / "status"
    require_or_skip(program.exists(), "there is no Messenger of status-go: `make status-interop` builds it")
    return program


@pytest.fixture(scope="module")
def node_url(real_nodes: Nodes) -> str:
    return real_nodes.real("--pubsub-topic=/waku/2/rs/16/64", "--filter")


@pytest.fixture(scope="module")
def gorush(servers: Servers) -> Iterator[Server]:
    yield servers.real(GORUSH)
    servers.fleet.kill(GORUSH)


@pytest.fixture(scope="module")
def server(node_url: str, gorush: Server, start_server: StartServer) -> Iterator[Fleet]:
    """The server, once it reads the node."""
    with start_server(node_url, GORUSH_URL=gorush.url, REPLY_DEADLINE_SECONDS="2") as fleet:
        wait_until(lambda: "query_topics_loaded" in fleet.log("bridge"), what="the bridge reads")
        yield fleet


@pytest.fixture
def world(
    status_program: Path, tmp_path: Path, node_url: str, server: Fleet, servers: Servers, gorush: Server
) -> Iterator[World]:
    here = World(status_program, tmp_path, node_url, server, servers, gorush)
    yield here
    here.close()


@pytest.fixture(autouse=True)
def duration(request: pytest.FixtureRequest) -> Iterator[None]:
    """Print a line for each scenario."""
    began = time.monotonic()
    yield
    print(f"\n{request.node.name[5:].replace('_', ' ')}: {time.monotonic() - began:.1f} s", flush=True)
