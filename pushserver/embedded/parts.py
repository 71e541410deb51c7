"""The embedded parts as `manage.py up` sees them: which variable each stands in for, and how it is started."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from pushserver.embedded.ports import remembered_port
from pushserver.embedded.postgres import EmbeddedPostgres
from pushserver.embedded.valkey import EmbeddedValkey
from pushserver.supervisor.processes import ProcessSpec, Stage, python


@dataclass(frozen=True, slots=True)
class EmbeddedPart:
    """``url`` is what the variable would hold, ``address`` the same for people: without a password."""

    variable: str
    url: str
    address: str
    spec: ProcessSpec
    is_ready: Callable[[], bool]


def postgres(data_dir: Path) -> EmbeddedPart:
    server = EmbeddedPostgres(data_dir / "postgres")
    return EmbeddedPart("DATABASE_URL", server.url(), server.url(), server.spec(), server.is_ready)


def valkey(data_dir: Path) -> EmbeddedPart:
    server = EmbeddedValkey(data_dir / "valkey", remembered_port(data_dir / "ports.json", "valkey"))
    return EmbeddedPart("REDIS_URL", server.url, server.address, server.spec(), server.is_ready)


def waku_node(data_dir: Path, pubsub_topics: Sequence[str]) -> EmbeddedPart:
    arguments = ["waku_bridge.devnode", "--data", str(data_dir / "devnode.sqlite3"), "--shard", *pubsub_topics]
    return _peer("node", "WAKU_NODES", arguments, "/health", data_dir)


def gorush(data_dir: Path) -> EmbeddedPart:
    arguments = ["notifications.gateways.gorush.devserver", "--data", str(data_dir / "gorush.sqlite3"), "--hide-token"]
    return _peer("gorush", "GORUSH_URL", arguments, "/healthz", data_dir)


def _peer(name: str, variable: str, arguments: Sequence[str], health_path: str, data_dir: Path) -> EmbeddedPart:
    port = remembered_port(data_dir / "ports.json", name)
    url = f"http://127.0.0.1:{port}"
    spec = python(name, "-m", *arguments, "--port", str(port), stage=Stage.PEER, stop_seconds=5)
    return EmbeddedPart(variable, url, url, spec, lambda: answers(f"{url}{health_path}"))


def answers(url: str) -> bool:
    """Whether ``url`` answers 200. Proxies of the environment are not for loopback."""
    try:
        return httpx.get(url, timeout=5, trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
