"""The XMPP server of the demonstration: a Prosody with two users and two components.

One component is the one of this server. The other plays a user's server.
"""

import secrets
from dataclasses import dataclass
from pathlib import Path

from embedded.servers import probing
from embedded.servers.parts import EmbeddedPart
from embedded.servers.ports import Ports
from embedded.servers.private import write_private
from embedded.servers.prosody import HOST, EmbeddedProsody

SERVICE = "push.montague.test"
USER_SERVER = "verona.test"
SECRET_FILE = "user-server-secret"  # noqa: S105 - a name


@dataclass(frozen=True, slots=True)
class DemoServer:
    """The settings that the processes of a demonstration share."""

    prosody: EmbeddedProsody

    @classmethod
    def choose(cls, data_dir: Path, ports: Ports) -> "DemoServer":
        """Choose ports, and new secrets at every start. Nothing is written."""
        components = {SERVICE: secrets.token_urlsafe(32), USER_SERVER: secrets.token_urlsafe(32)}
        numbers = ports["xmpp-users"], ports["xmpp-components"]
        return cls(EmbeddedProsody(data_dir / "prosody", *numbers, components, log_level="warn"))

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
        users = [f"--users={HOST}", f"--port={self.prosody.c2s_port}"]
        return [*users, f"--server={USER_SERVER}", f"--secret-file={self.prosody.folder / SECRET_FILE}"]

    def part(self) -> EmbeddedPart:
        """Describe Prosody as `manage.py up` needs it. The secret of the users' server is written for its clients."""
        self.prosody.folder.mkdir(mode=0o700, exist_ok=True)
        write_private(self.prosody.folder / SECRET_FILE, self.prosody.components[USER_SERVER])
        url = f"xmpp://127.0.0.1:{self.prosody.component_port}"
        return EmbeddedPart(url, self.prosody.spec(), lambda: probing.takes(url))
