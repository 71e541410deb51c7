"""The embedded servers of a DATA_DIR: their addresses, how each is started, and when it is ready.

Addresses are chosen in memory: nothing is written. `manage.py` imports this module before the settings, so only
`parts_of` may read them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from django.conf import settings

from embedded.servers.ports import Ports, is_free
from embedded.servers.postgres import EmbeddedPostgres
from embedded.servers.valkey import EmbeddedValkey
from embedded.supervisor.processes import ProcessSpec, StopOrder, python
from pushserver.config.data_dir import POSTGRES_FOLDER


@dataclass(frozen=True, slots=True)
class Addresses:
    """The embedded servers of one DATA_DIR, and the ports that they listen on."""

    postgres: EmbeddedPostgres
    valkey: EmbeddedValkey
    ports: Ports


@cache
def addresses_of(data_dir: Path) -> Addresses:
    """Return the servers of ``data_dir``: in one process always the same ones."""
    ports = Ports(data_dir / "ports.json")
    valkey = EmbeddedValkey(data_dir / "valkey", ports["valkey"])
    return Addresses(EmbeddedPostgres(data_dir / POSTGRES_FOLDER), valkey, ports)


def settings_of(data_dir: Path) -> dict[str, str]:
    """Return the settings that lead to the embedded servers of `manage.py up`, by variable."""
    here = addresses_of(data_dir)
    node, gorush = (f"http://127.0.0.1:{here.ports[name]}" for name in ("node", "gorush"))
    return {"DATABASE_URL": here.postgres.url(), "REDIS_URL": here.valkey.url, "WAKU_NODES": node, "GORUSH_URL": gorush}


@dataclass(frozen=True, slots=True)
class EmbeddedPart:
    """One embedded server. ``address`` is its URL without a password, for people.

    ``is_ready`` uses no thread, because the process that asks may have to fork.
    """

    address: str
    spec: ProcessSpec
    is_ready: Callable[[], bool]


def parts_of(data_dir: Path) -> Iterator[EmbeddedPart]:
    """Yield the embedded servers for everything that the environment does not configure."""
    here = addresses_of(data_dir)
    if "DATABASE_URL" in settings.EMBEDDED:
        yield EmbeddedPart(here.postgres.url(), here.postgres.spec(), here.postgres.is_ready)
    if "REDIS_URL" in settings.EMBEDDED:
        yield EmbeddedPart(f"redis://127.0.0.1:{here.valkey.port}/0", here.valkey.spec(), here.valkey.is_ready)
    if "WAKU_NODES" in settings.EMBEDDED:
        ring = ["--relay-cache-capacity", str(settings.WAKU_RING_CAPACITY)]
        options = ["--data", str(data_dir / "devnode.sqlite3"), *ring, "--shard", *settings.WAKU_PUBSUB_TOPICS]
        yield _peer("node", here.ports["node"], *options)
    if "GORUSH_URL" in settings.EMBEDDED:
        yield _peer("gorush", here.ports["gorush"], "--data", str(data_dir / "gorush.sqlite3"), "--hide-token")


def _peer(name: str, port: int, *options: str) -> EmbeddedPart:
    arguments = ["-m", f"embedded.{name}", "--port", str(port), *options]
    spec = python(name, *arguments, stop_order=StopOrder.PEER, stop_seconds=5)
    return EmbeddedPart(f"http://127.0.0.1:{port}", spec, lambda: not is_free("127.0.0.1", port))
