"""Addresses of the embedded servers of a DATA_DIR, as settings. They are chosen in memory: nothing is written.

`manage.py` imports this module before the settings, so it may not read them.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from embedded.servers.ports import Ports
from embedded.servers.postgres import EmbeddedPostgres
from embedded.servers.valkey import EmbeddedValkey
from pushserver.config.embedded import POSTGRES_FOLDER


@dataclass(frozen=True, slots=True)
class Addresses:
    """The embedded servers of one DATA_DIR, and the ports that they listen on."""

    postgres: EmbeddedPostgres
    valkey: EmbeddedValkey
    ports: Ports

    def settings(self) -> dict[str, str]:
        """Return the settings that lead to them, by variable."""
        return {
            "DATABASE_URL": self.postgres.url(),
            "REDIS_URL": self.valkey.url,
            "WAKU_NODES": self.ports.url("node"),
            "GORUSH_URL": self.ports.url("gorush"),
        }


@cache
def addresses_of(data_dir: Path) -> Addresses:
    """Return the servers of ``data_dir``: in one process always the same ones."""
    ports = Ports(data_dir / "ports.json")
    valkey = EmbeddedValkey(data_dir / "valkey", ports["valkey"])
    return Addresses(EmbeddedPostgres(data_dir / POSTGRES_FOLDER), valkey, ports)


def settings_of(data_dir: Path) -> dict[str, str]:
    """Return the settings of the embedded servers of `manage.py up`."""
    return addresses_of(data_dir).settings()
