"""Real ejabberd on loopback as docs/xmpp.md configures it, with one domain for users, and components.

Its Erlang machine is started directly, so that it needs neither its port mapper nor a node name.
"""

import re
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from django.conf import settings

from embedded.supervisor.processes import ProcessSpec, StopOrder
from tests.rig.providers.certificates import serve_as

LIBRARIES = sorted(Path("/usr/lib").glob("*/ejabberd-*/ebin"))
HOST = "capulet.test"
MODULES = ("push", "push_keepalive", "stream_mgmt", "mam", "offline", "roster", "disco")

# XEP-0077 before authentication. The result is an IQ of its own, which is distinguished from an error without a parser.
REGISTER = """\
<stream:stream xmlns='jabber:client' xmlns:stream='http://etherx.jabber.org/streams' to='capulet.test' version='1.0'>\
<iq type='set' id='register'><query xmlns='jabber:iq:register'>\
<username>{user}</username><password>{password}</password></query></iq>"""


@dataclass(frozen=True, slots=True)
class Ejabberd:
    """ejabberd's process and ports, the last one for other servers. ``components`` are secrets by domain. Accounts are
    made by registering them (XEP-0077).
    """

    folder: Path
    c2s_port: int
    component_port: int
    s2s_port: int
    components: Mapping[str, str]
    name: str = "ejabberd"

    def spec(self) -> ProcessSpec:
        folder = self.folder
        return ProcessSpec(
            name=self.name,
            command=[
                shutil.which("erl") or "erl",
                *("-noinput", "-mnesia", "dir", f'"{folder}/mnesia"', "-s", "ejabberd"),
            ],
            stop_order=StopOrder.PEER,
            folder=folder,
            environment={
                "HOME": str(folder),
                "EJABBERD_CONFIG_PATH": str(folder / "ejabberd.yml"),
                "EJABBERD_LOG_PATH": str(folder / "ejabberd-own.log"),
                "ERL_CRASH_DUMP": str(folder / "crash.dump"),
                "ERL_LIBS": str(LIBRARIES[-1].parents[1]) if LIBRARIES else "",
            },
            prepare=self.prepare,
        )

    def register(self, user: str, password: str) -> None:
        """Make an account."""
        with socket.create_connection(("127.0.0.1", self.c2s_port), timeout=10) as connection:
            connection.sendall(REGISTER.format(user=user, password=password).encode())
            stream = b""
            while b"register" not in stream.partition(b"</stream:features>")[2]:
                received = connection.recv(4096)
                assert received, stream
                stream += received
        assert b"type='error'" not in stream.partition(b"</stream:features>")[2], stream

    def prepare(self) -> None:
        self.folder.mkdir(exist_ok=True)
        serve_as([HOST], self.folder)
        followed = recipe()
        followed["listen"][0] |= {
            "port": self.component_port,
            "hosts": {domain: {"password": secret} for domain, secret in self.components.items()},
        }
        followed["listen"] += [
            {"port": self.c2s_port, "ip": "127.0.0.1", "module": "ejabberd_c2s", "starttls": False},
            {"port": self.s2s_port, "ip": "127.0.0.1", "module": "ejabberd_s2s_in"},
        ]
        followed["modules"] = {f"mod_{name}": {} for name in MODULES} | {"mod_register": {"ip_access": "all"}}
        followed |= {"hosts": [HOST], "certfiles": [str(self.folder / "leaf.pem")], "registration_timeout": "infinity"}
        (self.folder / "ejabberd.yml").write_text(yaml.safe_dump(followed))


def recipe() -> dict[str, Any]:
    text = (settings.BASE_DIR / "docs/xmpp.md").read_text(encoding="utf-8")
    [block] = [each for each in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "ejabberd" in each]
    return dict(yaml.safe_load(block))


def is_installed() -> bool:
    return bool(LIBRARIES) and shutil.which("erl") is not None
