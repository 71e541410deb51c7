"""Ports of embedded servers. They are stored in DATA_DIR, so that a restart keeps every URL."""

import json
import secrets
import socket
from contextlib import suppress
from pathlib import Path

# Systems use ports from 32768 (Linux) or 49152 (others) for outgoing connections. Such a connection could take the port
# of a server that is about to start, or is stopped.
PORTS = range(10_000, 32_768)
# Ports that this process has got. A server that is about to start does not use its port yet.
_given: set[int] = set()


def free_port() -> int:
    """Return a free port of 127.0.0.1 that no outgoing connection uses, and each time another one."""
    while (port := secrets.choice(PORTS)) in _given or not is_free("127.0.0.1", port):
        pass
    _given.add(port)
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


class Ports(dict[str, int]):
    """Ports by the name of a server. A server keeps the port of earlier starts, unless something else uses it now.

    ``file`` has the ports of earlier starts. Nothing is written before `save`.
    """

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        self._earlier: dict[str, int] = {}
        with suppress(OSError, ValueError):
            self._earlier = json.loads(file.read_text(encoding="ascii"))

    def __missing__(self, name: str) -> int:
        port = self._earlier.get(name) or free_port()
        while port in self.values() or not is_free("127.0.0.1", port):
            port = free_port()
        self[name] = port
        return port

    def save(self) -> None:
        """Write the ports that were chosen, beside those of servers that this start does not have."""
        self._file.write_text(json.dumps(self._earlier | self), encoding="ascii")
