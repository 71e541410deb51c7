"""Configuration of ejabberd in docs/xmpp.md, tested with a real ejabberd: which peer may claim a domain there."""

import re
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import settings

from embedded.servers.ports import free_port
from tests.interop.xmpp import ejabberd
from tests.interop.xmpp.ejabberd import Ejabberd
from tests.rig.providers.certificates import serve_as
from tests.rig.server import Fleet, wait_until

pytestmark = pytest.mark.xmpp
HEADER = (
    "<stream:stream xmlns='jabber:server' xmlns:db='jabber:server:dialback' version='1.0' from='claimed.test' "
    "xmlns:stream='http://etherx.jabber.org/streams' to='example.org'>"
)
EXTERNAL = "<auth xmlns='urn:ietf:params:xml:ns:xmpp-sasl' mechanism='EXTERNAL'>=</auth>"
CLAIM = "<db:result from='claimed.test' to='example.org'>a key</db:result>"


def recipe() -> dict[str, Any]:
    text = (settings.BASE_DIR / "docs/xmpp.md").read_text(encoding="utf-8")
    [block] = [each for each in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "ejabberd" in each]
    return dict(yaml.safe_load(block))


@dataclass(frozen=True, slots=True)
class Followed(Ejabberd):
    """The recipe with ports of this test, and one for other servers, as every installation has it."""

    s2s_port: int = 0

    def prepare(self) -> None:
        self.folder.mkdir(exist_ok=True)
        serve_as(["example.org"], self.folder)
        followed = recipe()
        followed["listen"][0]["port"] = self.component_port
        followed["listen"].append({"port": self.s2s_port, "ip": "127.0.0.1", "module": "ejabberd_s2s_in"})
        followed |= {"hosts": ["example.org"], "certfiles": [str(self.folder / "leaf.pem")]}
        (self.folder / "ejabberd.yml").write_text(yaml.safe_dump(followed))


def is_open(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


def ask(connection: socket.socket, sent: str, answer: str) -> str:
    """Send a text, and return the answer once the pattern matches it or the other side closes the connection."""
    connection.sendall(sent.encode())
    seen = ""
    while not re.search(answer, seen) and (received := connection.recv(4096).decode()):
        seen += received
    return seen


def test_a_peer_without_a_certificate_of_a_domain_cannot_claim_it(
    peer_fleet: Fleet, tmp_path: Path, require_or_skip: Callable[[bool, str], None]
) -> None:
    require_or_skip(ejabberd.is_installed(), "there is no ejabberd: `make xmpp-interop` as root installs it")
    server = Followed(tmp_path, 0, free_port(), {}, "followed", s2s_port=free_port())
    server.prepare()
    peer_fleet.start(server.spec())
    for port in (server.component_port, server.s2s_port):
        wait_until(lambda port=port: is_open(port), what="ejabberd listens")
    with socket.create_connection(("127.0.0.1", server.s2s_port), timeout=20) as connection:
        features = ask(connection, HEADER, "</stream:features>")
        assert "<required/>" in features
        ask(connection, "<starttls xmlns='urn:ietf:params:xml:ns:xmpp-tls'/>", "<proceed")
        encrypted = ssl._create_unverified_context().wrap_socket(connection)  # noqa: S323 - our own
        features = ask(encrypted, HEADER, "</stream:features>")
        assert "dialback" not in features.partition("<stream:features>")[2]
        assert "<not-authorized" in ask(encrypted, EXTERNAL, "<success|</failure>")
        assert "type='valid'" not in ask(encrypted, CLAIM, "</stream:stream>|type=")
        encrypted.close()
    peer_fleet.stop("followed")
