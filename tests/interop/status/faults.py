"""Fakes around the real parts of a scenario: time servers with a wrong time, and a push gateway that is not gorush."""

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.rig.peers import serve

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
