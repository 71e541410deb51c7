"""Ports of embedded servers. They are chosen once and stored in DATA_DIR, so that a restart keeps every URL."""

import json
import secrets
import socket
from contextlib import suppress
from pathlib import Path

# Systems use ports from 32768 (Linux) or 49152 (others) for outgoing connections. Such a connection could take the port
# of a server that is about to start, or is stopped.
_PORTS = range(10_000, 32_768)


def free_port() -> int:
    """Return a free port of 127.0.0.1 that no outgoing connection uses."""
    while not is_free("127.0.0.1", port := secrets.choice(_PORTS)):
        pass
    return port


def is_free(host: str, port: int) -> bool:
    """Return whether a server could listen there now.

    The check sets SO_REUSEADDR as servers do, so closed connections do not count.
    """
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError:
            return False
    return True


def remembered_port(file: Path, name: str) -> int:
    """Return the port of an earlier start, or another one when something else uses it now."""
    ports: dict[str, int] = {}
    with suppress(OSError, ValueError):
        ports = json.loads(file.read_text(encoding="ascii"))
    if not is_free("127.0.0.1", ports.get(name, 0)):
        ports.pop(name)
    if name not in ports:
        ports[name] = free_port()
        file.write_text(json.dumps(ports), encoding="ascii")
    return ports[name]
