"""Addresses of the embedded servers of a demonstration: those of `manage.py up`, and an XMPP server.

The XMPP server is a Prosody with two users and two components. One component is the one of this server. The other
plays a user's server. `manage.py` imports this module before the settings, so it may not read them.
"""

import secrets
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from embedded.servers import prosody
from embedded.servers.folders import write_private
from embedded.servers.parts import EmbeddedPart, takes
from embedded.servers.ports import Ports
from embedded.stack import addresses

SERVICE = "push.montague.test"
USER_SERVER = "verona.test"
SECRET_FILE = "user-server-secret"  # noqa: S105 - a name


@cache
def demo_server(data_dir: Path) -> "DemoServer | None":
    """Return the XMPP server, or None where no Prosody is installed."""
    return DemoServer.choose(data_dir, addresses.addresses_of(data_dir).ports) if prosody.is_installed() else None


def settings_of(data_dir: Path) -> dict[str, str]:
    """Return the settings of the embedded servers, and the one by which pages show that it is a demonstration."""
    server = demo_server(data_dir)
    return {**addresses.settings_of(data_dir), **(server.settings() if server else {}), "DEMONSTRATION": "1"}


@dataclass(frozen=True, slots=True)
class DemoServer:
    """The settings that the processes of a demonstration share."""

    prosody: prosody.EmbeddedProsody

    @classmethod
    def choose(cls, data_dir: Path, ports: Ports) -> "DemoServer":
        """Choose ports, and new secrets at every start. Nothing is written."""
        components = {SERVICE: secrets.token_urlsafe(32), USER_SERVER: secrets.token_urlsafe(32)}
        numbers = ports["xmpp-users"], ports["xmpp-components"]
        return cls(prosody.EmbeddedProsody(data_dir / "prosody", *numbers, components, log_level="warn"))

    def settings(self) -> dict[str, str]:
        """Return the settings of the component, by variable."""
        return {
            "XMPP_COMPONENT_JID": SERVICE,
            "XMPP_COMPONENT_SECRET": self.prosody.components[SERVICE],
            "XMPP_COMPONENT_HOST": "127.0.0.1",
            "XMPP_COMPONENT_PORT": str(self.prosody.component_port),
        }

    def arguments(self) -> list[str]:
        """Return the arguments of `manage.py xmpp_demo_clients`."""
        users = [f"--users={prosody.HOST}", f"--port={self.prosody.c2s_port}"]
        return [*users, f"--server={USER_SERVER}", f"--secret-file={self.prosody.folder / SECRET_FILE}"]

    def part(self) -> EmbeddedPart:
        """Describe Prosody as `manage.py up` needs it. The secret of the users' server is written for its clients."""
        self.prosody.folder.mkdir(mode=0o700, exist_ok=True)
        write_private(self.prosody.folder / SECRET_FILE, self.prosody.components[USER_SERVER])
        url = f"xmpp://127.0.0.1:{self.prosody.component_port}"
        return EmbeddedPart(url, self.prosody.spec(), lambda: takes(url))
