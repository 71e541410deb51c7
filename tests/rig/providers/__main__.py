"""Process of Apple and Google, until SIGTERM: `python -m tests.rig.providers --port 9000 --folder /tmp/providers`.

The folder gets the authority to trust (`ca.pem`) and credentials for gorush before the port opens. Requests without
CONNECT are Google's token endpoint, and for tests the record of pushes and the faults: `/dev/pushes` has the fields of
the development gorush's, and `/dev/faults` takes the same and the ways, so that one test reads and breaks either.
"""

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from pathlib import Path
from ssl import SSLContext, SSLError
from urllib.parse import parse_qs, urlsplit

import orjson
from h2.exceptions import ProtocolError

from embedded.gorush.server import Faults
from tests.rig.providers.certificates import serve_as, write_credentials
from tests.rig.providers.http import Answer, Break, Http2, Reply, Request, json_reply, serve_http1
from tests.rig.providers.services import ACCESS_TOKEN, APPLE, GOOGLE, Ledger, answer_as_apple, answer_as_google

HOST = "127.0.0.1"
HEAD_END = b"\r\n\r\n"
HELLO_BYTES = 64 * 1024
GRANT_TYPE = "urn:ietf:params:oauth:grant-type:jwt-bearer"
TOKEN = {"access_token": ACCESS_TOKEN, "token_type": "Bearer", "expires_in": 3600}
REVOKED = {"error": "invalid_grant", "error_description": "Invalid grant: account not found"}
# A TLS record (RFC 8446, 5.1 and 6) with the fatal alert certificate_expired, in plain text before any handshake.
EXPIRED_CERTIFICATE = bytes([21, 3, 3, 0, 2, 2, 45])


class Way(StrEnum):
    """State of the way to a provider. While it is broken, a push reaches the provider on the way ``RESET`` only."""

    OPEN = ""
    ALERT = "alert"  # each handshake ends with the TLS alert
    GOAWAY = "goaway"  # each request is answered with a GOAWAY that names a reason
    EOF = "eof"  # the connection ends at each request
    RESET = "reset"  # the connection is reset when the provider has accepted the push
    NO_HOST = "no_host"  # the proxy does not find the host


BREAKS: Mapping[Way, Break] = {Way.GOAWAY: Break.GOAWAY, Way.EOF: Break.CLOSE, Way.RESET: Break.RESET}


@dataclass(slots=True)
class ProviderFaults(Faults):
    """Faults of both providers, and the states of the ways to each."""

    apple: str = Way.OPEN.value
    google: str = Way.OPEN.value

    def way_to(self, host: str) -> Way:
        return Way(self.google if host.endswith(".googleapis.com") else self.apple)

    def refusal_of(self, host: str) -> str:
        """Return the words with which the proxy refuses to connect, or an empty string. gorush passes them on."""
        if self.way_to(host) is Way.NO_HOST:
            return f"dial tcp: lookup {host}: no such host"
        return "Bad Gateway" if self.down else ""


async def answer_itself(request: Request, ledger: Ledger, faults: ProviderFaults, cut: Callable[[], None]) -> Reply:
    """Answer a request to the port itself. ``cut`` breaks the connections on broken ways to Apple and Google."""
    target = urlsplit(request.path)
    match request.method, target.path:
        case "POST", "/token" if parse_qs(request.body.decode()).get("grant_type") == [GRANT_TYPE]:
            return json_reply(TOKEN)
        case "POST", "/token" | "/token/revoked":
            return json_reply(REVOKED, HTTPStatus.BAD_REQUEST)
        case "GET", "/dev/pushes":
            since = int(parse_qs(target.query).get("since", ["0"])[0])
            pushes = ledger.since(since)
            return json_reply({"pushes": pushes, "last_id": since + len(pushes)})
        case "POST" | "DELETE", "/dev/faults":
            faults.update(orjson.loads(request.body)) if request.method == "POST" else faults.clear()
            cut()
            return json_reply(asdict(faults))
        case "GET", "/healthz":
            return Reply()
    return Reply(HTTPStatus.NOT_FOUND)


class Proxy:
    def __init__(self, tls: SSLContext) -> None:
        self._tls = tls
        self._faults = ProviderFaults()
        self._tunnels: dict[asyncio.StreamWriter, str] = {}
        ledger = Ledger(self._faults)
        self._control: Answer = partial(answer_itself, ledger=ledger, faults=self._faults, cut=self._cut)
        self._hosts: dict[str, Answer] = {
            **{host: partial(self._answer, host, partial(answer_as_apple, ledger=ledger)) for host in APPLE},
            **{host: partial(self._answer, host, partial(answer_as_google, ledger=ledger)) for host in GOOGLE},
        }

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection. A peer that breaks it off is part of some tests."""
        with suppress(OSError, EOFError, SSLError, ProtocolError):
            head = await reader.readuntil(HEAD_END)
            if head.startswith(b"CONNECT "):
                await self._tunnel(head, reader, writer)
            else:
                await serve_http1(reader, writer, self._control, already_read=head)
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
            await serve_http1(reader, writer, self._hosts[host])

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
    tls = serve_as([*APPLE, *GOOGLE], folder)
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
