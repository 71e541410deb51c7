"""Messengers of status-go, each in a process of its own (`tests/interop/peers/status` is the program), and fakes around
them: time servers with a wrong time, and a push gateway that is not gorush.
"""

import json
import secrets
import socket
import struct
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from signal import SIGKILL
from typing import Any

from coincurve import PrivateKey

from embedded.supervisor.guard import kill_group
from tests.rig.peers import serve
from tests.rig.server import wait_until

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
    prefix: Sequence[str] = ()  # before the command
    has_network_time: bool = False
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
                [*self.prefix, str(self.program)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        names = ("private_key", "installation_id", "is_light", "has_network_time", "is_service")
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


# Fakes

# Time servers of status-go.
TIME_SERVERS = (
    *("time.apple.com", "pool.ntp.org", "time.cloudflare.com", "time.windows.com"),
    *("ntp.neu.edu.cn", "ntp.nict.jp", "amazon.pool.ntp.org", "android.pool.ntp.org"),
)
NTP_PORT = 123
NTP_EPOCH_SECONDS = 2_208_988_800  # 1900 to 1970
SERVER_V4 = 0x24  # leap 0, version 4, mode server (RFC 5905)


@contextmanager
def network_time(folder: Path, *, offset_seconds: float) -> Iterator[list[str]]:
    """Answer for the network time servers, and yield a command prefix that gives a program the fake time."""
    hosts = folder / "hosts"
    hosts.write_text("127.0.0.1 localhost " + " ".join(TIME_SERVERS) + "\n")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", NTP_PORT))
        thread = threading.Thread(target=_shift_time, args=(server, offset_seconds))
        thread.start()
        yield ["unshare", "--mount", "sh", "-c", f'mount --bind {hosts} /etc/hosts && exec "$0"']
        server.sendto(b"", ("127.0.0.1", NTP_PORT))  # ends the thread
        thread.join()


def _shift_time(server: socket.socket, offset_seconds: float) -> None:
    while True:
        question, address = server.recvfrom(512)
        if not question:
            return
        seconds = time.time() + offset_seconds + NTP_EPOCH_SECONDS
        now = struct.pack("!II", int(seconds), int(seconds % 1 * 2**32))
        header = struct.pack("!BBbbII4s", SERVER_V4, 1, 6, -20, 0, 0, b"TEST")
        server.sendto(header + now + question[40:48] + now + now, address)


@contextmanager
def gateway(answer: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Run a server that gives this answer to every push. Yield its URL and the notifications that it received."""
    received: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.extend(json.loads(body)["notifications"])
            content = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with serve(Handler) as server:
        yield f"http://127.0.0.1:{server.server_port}", received
