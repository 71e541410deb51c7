"""Addresses of the embedded servers of a demonstration: those of `manage.py up`, and the XMPP server.

`manage.py` imports this module before the settings, so it may not read them.
"""

from functools import cache
from pathlib import Path

from embedded.demo.xmpp import DemoServer
from embedded.servers import prosody
from embedded.stack import addresses


@cache
def demo_server(data_dir: Path) -> DemoServer | None:
    """Return the XMPP server, or None where no Prosody is installed."""
    return DemoServer.choose(data_dir, addresses.addresses_of(data_dir).ports) if prosody.is_installed() else None


def settings_of(data_dir: Path) -> dict[str, str]:
    """Return the settings of the embedded servers, and the one by which pages show that it is a demonstration."""
    server = demo_server(data_dir)
    return {**addresses.settings_of(data_dir), **(server.settings() if server else {}), "DEMONSTRATION": "1"}
