"""World of real parts: Messengers of status-go, each in a process of its own (`tests/interop/peers/status`), a go-waku
that they share, this server, and the real gorush with our fakes of Apple and Google.
"""

import json
import secrets
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
from coincurve import PrivateKey

from embedded.supervisor.guard import kill_group
from tests.interop.conftest import PEERS, StartServer
from tests.interop.nodes import Nodes, address_of
from tests.rig import server as processes
from tests.rig.peers import Server, Servers
from tests.rig.server import Fleet, wait_until

APN, FIREBASE = 1, 2
APP_TOPIC = "im.status.ethereum"


def app_key(private_key: bytes) -> str:
    """Return a public key as the app writes it: uncompressed, hexadecimal, with 0x."""
    return "0x" + PrivateKey(private_key).public_key.format(compressed=False).hex()


@dataclass(frozen=True, slots=True)
class Report:
    """Row of a sender's database about the push of a message to one installation."""

    installation_id: str
    success: bool
    error: int
    retry_count: int
    type: int


@dataclass(slots=True)
class Messenger:
    """One user's device. ``folder`` holds its databases and its log, and ``peers`` are multiaddresses of nodes."""

    program: Path
    folder: Path
    peers: Sequence[str]
    private_key: str = field(default_factory=lambda: secrets.token_hex(32))
    installation_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    is_light: bool = False
    is_service: bool = False  # no Messenger, but a node that light clients depend on
    address: str = ""  # of a service
    _process: subprocess.Popen[str] | None = None
    _count: int = 0

    @property
    def key(self) -> str:
        """Return the public key as the app writes it: uncompressed, hexadecimal, with 0x."""
        return app_key(bytes.fromhex(self.private_key))

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "stderr").open("ab") as errors:
            self._process = subprocess.Popen(
                [str(self.program)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        names = ("private_key", "installation_id", "is_light", "is_service")
        settings = {name: getattr(self, name) for name in names}
        self.address = self._submit(settings | {"folder": str(self.folder), "peers": list(self.peers)}) or ""

    def ask(self, command: str, **arguments: Any) -> Any:
        """Run a command of the program and return its result."""
        self._count += 1
        return self._submit({"id": self._count, "do": command} | arguments)

    def stop(self) -> None:
        """End the process as the app ends it."""
        if self._process:
            self._process.communicate(timeout=30)
            self._process = None

    def kill(self) -> None:
        if self._process:
            kill_group(self._process.pid, SIGKILL)
            self._process.communicate()
            self._process = None

    def register(self, server: str, token: str, *, token_type: int = APN) -> None:
        """Register with a server, as `wakuext_registerForPushNotifications` does, and wait for its answer."""
        if not self.ask("servers"):
            self.ask("add_server", key=server)
        topic = APP_TOPIC if token_type == APN else ""
        self.ask("register", token=token, topic=topic, token_type=token_type)
        self.wait_for_registration()

    def wait_for_registration(self) -> None:
        wait_until(lambda: self.ask("is_registered"), what="registered")

    def befriend(self, other: "Messenger") -> None:
        """Become contacts, by a request that the other one accepts."""
        self.ask("request_contact", key=other.key, text="Hello!")
        wait_until(lambda: other.accepts(self), what="the contact request arrives")
        wait_until(lambda: other.key in self.ask("contacts"), what="contacts")

    def accepts(self, other: "Messenger") -> bool:
        try:
            self.ask("accept_contact", key=other.key)
        except AssertionError:
            return False
        return True

    def reports(self, message_id: str) -> list[Report]:
        return [Report(row[0], bool(row[1]), *row[2:]) for row in self.ask("reports", text=message_id)]

    def _submit(self, line: dict[str, Any]) -> Any:
        assert self._process
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer.get("result")


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
