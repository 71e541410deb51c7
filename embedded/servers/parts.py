"""The embedded servers as `manage.py up` needs them: the variable that each replaces, and how it is started."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from embedded.servers import probing
from embedded.servers.ports import remembered_port
from embedded.servers.postgres import SOCKET_NAME, EmbeddedPostgres
from embedded.servers.valkey import EmbeddedValkey
from embedded.supervisor.processes import ProcessSpec, StopOrder, python
from kit.db.connections import is_marked_ready


@dataclass(frozen=True, slots=True)
class EmbeddedPart:
    """One embedded server.

    ``url`` is the value that its variable would have. ``address`` is the same without a password, for people.
    """

    variable: str
    url: str
    address: str
    spec: ProcessSpec
    is_ready: Callable[[], Awaitable[bool]]


def postgres(server: EmbeddedPostgres) -> EmbeddedPart:
    """Describe the embedded PostgreSQL."""

    async def is_ready() -> bool:
        return is_marked_ready(server.data_dir) and await probing.listens(server.socket_dir / SOCKET_NAME)

    return EmbeddedPart("DATABASE_URL", server.url(), server.url(), server.spec(), is_ready)


def valkey(data_dir: Path) -> EmbeddedPart:
    """Describe the embedded Valkey."""
    server = EmbeddedValkey(data_dir / "valkey", remembered_port(data_dir / "ports.json", "valkey"))
    return EmbeddedPart("REDIS_URL", server.url, server.address, server.spec(), lambda: probing.pongs(server.url))


def waku_node(data_dir: Path, pubsub_topics: Sequence[str], *, ring_capacity: int) -> EmbeddedPart:
    """Describe the development node, whose relay cache holds ``ring_capacity`` messages."""
    arguments = ["embedded.node", "--data", str(data_dir / "devnode.sqlite3"), "--shard", *pubsub_topics]
    arguments += ["--relay-cache-capacity", str(ring_capacity)]
    return _peer("node", "WAKU_NODES", arguments, "/health", data_dir)


def gorush(data_dir: Path) -> EmbeddedPart:
    """Describe the development gorush."""
    arguments = ["embedded.gorush", "--data", str(data_dir / "gorush.sqlite3"), "--hide-token"]
    return _peer("gorush", "GORUSH_URL", arguments, "/healthz", data_dir)


def _peer(name: str, variable: str, arguments: Sequence[str], health_path: str, data_dir: Path) -> EmbeddedPart:
    port = remembered_port(data_dir / "ports.json", name)
    url = f"http://127.0.0.1:{port}"
    spec = python(name, "-m", *arguments, "--port", str(port), stop_order=StopOrder.PEER, stop_seconds=5)
    return EmbeddedPart(variable, url, url, spec, lambda: probing.answers(f"{url}{health_path}"))
