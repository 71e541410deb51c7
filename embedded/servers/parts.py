"""The embedded servers as `manage.py up` needs them: how each is started, and when it is ready."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from embedded.servers import probing
from embedded.servers.postgres import SOCKET_NAME, EmbeddedPostgres
from embedded.servers.valkey import EmbeddedValkey
from embedded.supervisor.processes import ProcessSpec, StopOrder, python
from kit.db.connections import is_marked_ready


@dataclass(frozen=True, slots=True)
class EmbeddedPart:
    """One embedded server.

    ``address`` is its URL without a password, for people.
    """

    address: str
    spec: ProcessSpec
    is_ready: Callable[[], Awaitable[bool]]


def postgres(server: EmbeddedPostgres) -> EmbeddedPart:
    """Describe the embedded PostgreSQL."""

    async def is_ready() -> bool:
        return is_marked_ready(server.data_dir) and await probing.listens(server.socket_dir / SOCKET_NAME)

    return EmbeddedPart(server.url(), server.spec(), is_ready)


def valkey(server: EmbeddedValkey) -> EmbeddedPart:
    """Describe the embedded Valkey."""
    return EmbeddedPart(server.address, server.spec(), lambda: probing.pongs(server.url))


def waku_node(data_dir: Path, port: int, pubsub_topics: Sequence[str], *, ring_capacity: int) -> EmbeddedPart:
    """Describe the development node, whose relay cache holds ``ring_capacity`` messages."""
    arguments = ["embedded.node", "--data", str(data_dir / "devnode.sqlite3"), "--shard", *pubsub_topics]
    arguments += ["--relay-cache-capacity", str(ring_capacity)]
    return _peer("node", arguments, "/health", port)


def gorush(data_dir: Path, port: int) -> EmbeddedPart:
    """Describe the development gorush."""
    arguments = ["embedded.gorush", "--data", str(data_dir / "gorush.sqlite3"), "--hide-token"]
    return _peer("gorush", arguments, "/healthz", port)


def _peer(name: str, arguments: Sequence[str], health_path: str, port: int) -> EmbeddedPart:
    url = f"http://127.0.0.1:{port}"
    spec = python(name, "-m", *arguments, "--port", str(port), stop_order=StopOrder.PEER, stop_seconds=5)
    return EmbeddedPart(url, spec, lambda: probing.answers(f"{url}{health_path}"))
