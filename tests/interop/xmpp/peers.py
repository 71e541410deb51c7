"""Real XMPP servers on loopback, and the messages of their users."""

import socket
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from embedded.servers.ports import free_port
from embedded.servers.prosody import EmbeddedProsody
from embedded.supervisor.processes import ProcessSpec
from tests.interop.xmpp.ejabberd import Ejabberd
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
TIMEOUT_SECONDS = 20.0
# Stanzas arrive within milliseconds. After this time without one, none will come.
SILENCE_SECONDS = 1.5


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
