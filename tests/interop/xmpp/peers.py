"""Real XMPP servers on loopback, and the messages of their users.

ejabberd is configured as docs/xmpp.md has it. Its Erlang machine is started directly, so that it needs neither its port
mapper nor a node name.
"""

import re
import shutil
import socket
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import yaml
from django.conf import settings

from embedded.servers.ports import free_port
from embedded.servers.prosody import EmbeddedProsody
from embedded.supervisor.processes import ProcessSpec, StopOrder
from tests.rig.providers.certificates import serve_as
from tests.rig.server import Fleet, wait_until
from xmpp_bridge.client.connections import Account, Component
from xmpp_bridge.client.elements import PING, element

USERS = "capulet.test"
SERVICE, SERVICE_SECRET = "push.montague.test", "s3cret"
USER_SERVER, USER_SERVER_SECRET = "userserver.test", "us3r"
DOUBLE_SECRET = "d0uble"
# Hostile servers of a siege.
DOUBLES = [f"double{number}.test" for number in range(12)]
COMPONENTS = {SERVICE: SERVICE_SECRET, USER_SERVER: USER_SERVER_SECRET, **dict.fromkeys(DOUBLES, DOUBLE_SECRET)}
LOOPBACK = "127.0.0.1"
# Long enough for a busy machine: nothing here measures time.
TIMEOUT_SECONDS = 120.0
# Stanzas arrive within milliseconds. After this time without one, none will come.
SILENCE_SECONDS = 1.5
LIBRARIES = sorted(Path("/usr/lib").glob("*/ejabberd-*/ebin"))
MODULES = ("push", "push_keepalive", "stream_mgmt", "mam", "offline", "roster", "disco")


@dataclass(frozen=True, slots=True)
class Peer:
    """A running server, with the ports for clients and components, and the function that makes an account."""

    name: str
    fleet: Fleet
    c2s_port: int
    component_port: int
    spec: ProcessSpec
    make_account: Callable[[str], None]
    s2s_port: int = 0

    def user(self, name: str) -> str:
        """Return the JID of a new user."""
        user = f"{name}-{uuid.uuid4().hex[:8]}"
        self.make_account(user)
        return f"{user}@{USERS}"

    def account(self, jid: str, resource: str = "phone") -> Account:
        return Account(f"{jid}/{resource}", "any", LOOPBACK, self.c2s_port)

    def component(
        self, domain: str = SERVICE, secret: str = SERVICE_SECRET, on_stanza: Callable[[Element], None] | None = None
    ) -> Component:
        return Component(domain, secret, LOOPBACK, self.component_port, on_stanza)

    def stop(self) -> None:
        self.fleet.stop(self.name)

    def start(self) -> None:
        self.spec.prepare()
        self.fleet.start(self.spec)
        for port in (self.component_port, self.c2s_port):
            wait_until(lambda port=port: self._is_open(port), what=f"{self.name} listens")

    def _is_open(self, port: int) -> bool:
        assert self.fleet.running[self.name].poll() is None, f"{self.name} does not start: {self.log()[-2000:]}"
        with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=5):
            return True
        return False

    def log(self) -> str:
        return self.fleet.log(self.name)


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
        serve_as([USERS], self.folder)
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
        followed |= {"hosts": [USERS], "certfiles": [str(self.folder / "leaf.pem")], "registration_timeout": "infinity"}
        (self.folder / "ejabberd.yml").write_text(yaml.safe_dump(followed))


def recipe() -> dict[str, Any]:
    text = (settings.BASE_DIR / "docs/xmpp.md").read_text(encoding="utf-8")
    [block] = [each for each in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "ejabberd" in each]
    return dict(yaml.safe_load(block))


def is_ejabberd_installed() -> bool:
    return bool(LIBRARIES) and shutil.which("erl") is not None


def prosody(fleet: Fleet, name: str = "prosody", **options: str) -> Peer:
    server = EmbeddedProsody(fleet.folder / name, free_port(), free_port(), COMPONENTS, options, name, "debug")
    return _start(fleet, server, lambda _: None)


def component_of(peer: Peer) -> dict[str, str]:
    """Return the settings of a push service that is a component of this server."""
    return {
        "XMPP_COMPONENT_JID": SERVICE,
        "XMPP_COMPONENT_SECRET": SERVICE_SECRET,
        "XMPP_COMPONENT_HOST": LOOPBACK,
        "XMPP_COMPONENT_PORT": str(peer.component_port),
    }


def ejabberd(fleet: Fleet, name: str = "ejabberd") -> Peer:
    server = Ejabberd(fleet.folder / name, free_port(), free_port(), free_port(), COMPONENTS, name)
    return _start(fleet, server, lambda user: server.register(user, "any"), server.s2s_port)


def _start(
    fleet: Fleet, server: EmbeddedProsody | Ejabberd, make_account: Callable[[str], None], s2s_port: int = 0
) -> Peer:
    peer = Peer(server.name, fleet, server.c2s_port, server.component_port, server.spec(), make_account, s2s_port)
    peer.start()
    return peer


async def write_to_absent(account: Account, to: str, body: str) -> None:
    """Write to a user as soon as the server has forgotten the session of their phone, which has logged out.

    Until then the phone counts as online, and messages to it lead to no push. The server answers a ping to a closed
    session with an error.
    """
    question = {"type": "get", "to": f"{to}/phone", "id": uuid.uuid4().hex}
    answer = await account.ask(element("iq", "", question, element("ping", PING)))
    assert answer.get("type") == "error", f"{to} is still online"
    message = {"to": to, "type": "chat", "id": uuid.uuid4().hex}
    account.send(element("message", "", message, element("body", text=body)))
