"""Process of the fakes, which runs until SIGTERM: `python -m tests.rig.providers --port 9000 --folder /tmp/fakes`.

The folder gets the authority to trust (`ca.pem`) and credentials for gorush (`credentials.py`) before the port opens.
"""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from ssl import SSLContext, SSLError

from h2.exceptions import ProtocolError

from tests.rig.providers import apns, control, fcm, http1
from tests.rig.providers.certificates import serve_as
from tests.rig.providers.credentials import write_credentials
from tests.rig.providers.http2 import Http2
from tests.rig.providers.ledger import Ledger
from tests.rig.providers.messages import Answer, Break, Reply, Request
from tests.rig.providers.ways import BREAKS, EXPIRED_CERTIFICATE, ProviderFaults, Way

HOST = "127.0.0.1"
HEAD_END = b"\r\n\r\n"
HELLO_BYTES = 64 * 1024


class Proxy:
    def __init__(self, tls: SSLContext) -> None:
        self._tls = tls
        self._faults = ProviderFaults()
        self._tunnels: dict[asyncio.StreamWriter, str] = {}
        ledger = Ledger(self._faults)
        self._control: Answer = partial(control.answer, ledger=ledger, faults=self._faults, cut=self._cut)
        self._hosts: dict[str, Answer] = {
            **{host: partial(self._answer, host, partial(apns.answer, ledger=ledger)) for host in apns.HOSTS},
            **{host: partial(self._answer, host, partial(fcm.answer, ledger=ledger)) for host in fcm.HOSTS},
        }

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection. A peer that breaks it off is part of some tests."""
        with suppress(OSError, EOFError, SSLError, ProtocolError):
            head = await reader.readuntil(HEAD_END)
            if head.startswith(b"CONNECT "):
                await self._tunnel(head, reader, writer)
            else:
                await http1.serve(reader, writer, self._control, already_read=head)
        writer.close()

    async def _tunnel(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host = head.split()[1].decode().removesuffix(":443")
        if host not in self._hosts or self._faults.refusal_of(host):
            writer.write(f"HTTP/1.1 502 {self._faults.refusal_of(host) or 'Bad Gateway'}\r\n\r\n".encode())
            return
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await writer.drain()
        if self._faults.way_to(host) is Way.ALERT:
            await reader.read(HELLO_BYTES)
            writer.write(EXPIRED_CERTIFICATE)
            return
        self._tunnels[writer] = host
        try:
            await writer.start_tls(self._tls)
            await self._serve_as(host, reader, writer)
        finally:
            del self._tunnels[writer]

    async def _serve_as(self, host: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2":
            await Http2(reader, writer, self._hosts[host]).serve()
        else:
            await http1.serve(reader, writer, self._hosts[host])

    def _cut(self) -> None:
        """Break the connections on broken ways. Answers that were sent still get through."""
        for writer, host in self._tunnels.items():
            if self._faults.down or self._faults.way_to(host):
                writer.close()

    async def _answer(self, host: str, answer: Answer, request: Request) -> Reply | Break:
        if self._faults.status:
            return Reply(self._faults.status)
        broken = BREAKS.get(self._faults.way_to(host))
        reply = await answer(request) if broken in {None, Break.RESET} else broken
        return broken or reply


async def run(port: int, folder: Path) -> None:
    tls = serve_as([*apns.HOSTS, *fcm.HOSTS], folder)
    write_credentials(folder, f"http://{HOST}:{port}")
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]] = Proxy(tls).serve
    async with await asyncio.start_server(serve, HOST, port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.rig.providers", description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    asyncio.run(run(arguments.port, arguments.folder))
