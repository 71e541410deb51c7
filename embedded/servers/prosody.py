"""A Prosody of this machine, for the demonstration and for tests: users of one domain, and components.

It is for nothing else: it accepts any password, keeps nothing on disk, and is reachable on loopback only. The program
is the distribution's package of that name (`requirements/system.sh prosody`).
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from embedded.servers.folders import stop_leftover, write_private
from embedded.supervisor.processes import ProcessSpec, StopOrder

HOST = "capulet.test"
MODULES = ("roster", "saslauth", "disco", "offline", "mam", "smacks", "carbons", "ping", "posix", "cloud_notify")

CONFIGURATION_FILE = "prosody.cfg.lua"
CONFIGURATION = """\
run_as_root = true
pidfile = "{folder}/prosody.pid"
data_path = "{folder}/data"
certificates = "{folder}"
log = {{ {log_level} = "*console" }}

interfaces = {{ "127.0.0.1" }}
c2s_ports = {{ {c2s_port} }}
c2s_direct_tls_ports = {{}}
s2s_ports = {{}}
s2s_direct_tls_ports = {{}}
http_ports = {{}}
https_ports = {{}}
component_ports = {{ {component_port} }}
component_interfaces = {{ "127.0.0.1" }}

modules_enabled = {{ {modules} }}
modules_disabled = {{ "s2s"; "tls" }}

authentication = "insecure"
insecure_open_authentication = "Yes please, I know what I'm doing!"
storage = "memory"
c2s_require_encryption = false
allow_unencrypted_plain_auth = true
{options}
VirtualHost "{host}"
"""
COMPONENT = """
Component "{domain}"
  component_secret = "{secret}"
"""


@dataclass(frozen=True, slots=True)
class EmbeddedProsody:
    """One server in ``folder`` on 127.0.0.1. ``components`` are secrets by domain.

    ``options`` are further settings of Prosody, with their values in Lua.
    """

    folder: Path
    c2s_port: int
    component_port: int
    components: Mapping[str, str] = field(repr=False)
    options: Mapping[str, str] = field(default_factory=dict)
    name: str = "prosody"
    log_level: str = "info"

    def spec(self) -> ProcessSpec:
        """Describe the server as a process."""
        return ProcessSpec(
            name=self.name,
            command=["prosody", "-F", "--config", str(self.folder / CONFIGURATION_FILE)],
            stop_order=StopOrder.PEER,
            folder=self.folder,
            stop_seconds=5,
            prepare=self.prepare,
        )

    def prepare(self) -> None:
        """Write the configuration, which contains the secrets, and stop a leftover server."""
        (self.folder / "data").mkdir(mode=0o700, parents=True, exist_ok=True)
        components = (COMPONENT.format(domain=domain, secret=secret) for domain, secret in self.components.items())
        server = CONFIGURATION.format(
            folder=self.folder,
            log_level=self.log_level,
            c2s_port=self.c2s_port,
            component_port=self.component_port,
            modules="; ".join(f'"{module}"' for module in MODULES),
            options="".join(f"{name} = {value}\n" for name, value in self.options.items()),
            host=HOST,
        )
        write_private(self.folder / CONFIGURATION_FILE, server + "".join(components))
        stop_leftover(self.folder / "prosody.pid", self.folder)


def is_installed() -> bool:
    """Return whether Prosody is installed on this machine."""
    return shutil.which("prosody") is not None
