"""Addresses of the embedded servers of a demonstration: those of `manage.py up`, and an XMPP server.

The XMPP server is a Prosody with two components. One is the component of this server, and the other plays a user's
server. `manage.py` imports this module before the settings, so it may not read them.
"""

import secrets
from functools import cache
from pathlib import Path

from embedded.servers import prosody
from embedded.servers.folders import write_private
from embedded.servers.ports import Ports, is_free
from embedded.servers.prosody import EmbeddedProsody
from embedded.stack import parts
from embedded.stack.parts import EmbeddedPart

SERVICE = "push.montague.test"
USER_SERVER = "verona.test"
SECRET_FILE = "user-server-secret"  # noqa: S105 - a name


def settings_of(data_dir: Path) -> dict[str, str]:
    """Return the settings of the embedded servers, and the one by which pages show that it is a demonstration."""
    server = demo_server(data_dir)
    return {**parts.settings_of(data_dir), **(component_of(server) if server else {}), "DEMONSTRATION": "1"}


@cache
def demo_server(data_dir: Path) -> EmbeddedProsody | None:
    """Return the XMPP server, or None where no Prosody is installed: in one process always the same one."""
    return choose(data_dir, parts.addresses_of(data_dir).ports) if prosody.is_installed() else None


def choose(data_dir: Path, ports: Ports) -> EmbeddedProsody:
    """Choose ports, and new secrets at every start. Nothing is written."""
    components = {SERVICE: secrets.token_urlsafe(32), USER_SERVER: secrets.token_urlsafe(32)}
    numbers = ports["xmpp-users"], ports["xmpp-components"]
    return EmbeddedProsody(data_dir / "prosody", *numbers, components, log_level="warn")


def component_of(server: EmbeddedProsody) -> dict[str, str]:
    """Return the settings of the component, by variable."""
    port, secret = str(server.component_port), server.components[SERVICE]
    settings = {"JID": SERVICE, "SECRET": secret, "HOST": "127.0.0.1", "PORT": port}
    return {f"XMPP_COMPONENT_{name}": value for name, value in settings.items()}


def arguments_of(server: EmbeddedProsody) -> list[str]:
    """Return the arguments of `manage.py demo_clients`."""
    return [f"--server={USER_SERVER}", f"--secret-file={server.folder / SECRET_FILE}"]


def part_of(server: EmbeddedProsody) -> EmbeddedPart:
    """Describe Prosody as `manage.py up` needs it. The secret of the users' server is written for its clients."""
    server.folder.mkdir(mode=0o700, exist_ok=True)
    write_private(server.folder / SECRET_FILE, server.components[USER_SERVER])
    port = server.component_port
    return EmbeddedPart(f"xmpp://127.0.0.1:{port}", server.spec(), lambda: not is_free("127.0.0.1", port))
