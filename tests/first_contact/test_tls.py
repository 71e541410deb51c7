"""Links with TLS: every client verifies certificate and name of its server, and trusts an operator's own authority."""

import asyncio
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import pytest

from embedded.servers.valkey import EmbeddedValkey
from embedded.supervisor.processes import PROJECT
from tests.rig.peers import serve_gorush
from tests.rig.providers.certificates import serve_as

# Each client of the server is asked once, and prints whether it takes the certificate.
CLIENTS = """
import django; django.setup()
from django.conf import settings
from django.core.cache import cache
from kit.http.connections import lasting_client, submit
from notifications.gateways.gorush.operations import GorushOperations
from pushserver.celery import app
from pushserver.indicators.asking import ask_broker
from pushserver.metrics.stock import _ask_broker

def takes(work):
    try:
        return bool(work())
    except Exception:
        return False

node = lasting_client(timeout_seconds=5)
for name, work in {
    "celery": lambda: app.connection_for_write(connect_timeout=5).default_channel.client.ping(),
    "cache": lambda: cache.add("tls", 1) or True,
    "probe": lambda: not ask_broker(),
    "metrics": lambda: list(_ask_broker()),
    "gorush": lambda: all(GorushOperations().ask().values()),
    "node": lambda: submit(node.request("GET", settings.WAKU_NODES[0])).result(10).status_code == 200,
}.items():
    print(name, takes(work))
print("said", ask_broker())
"""
NAMES = ("celery", "cache", "probe", "metrics", "gorush", "node")
UNVERIFIED = "said Redis has no valid certificate for the host of REDIS_URL"


class Servers(NamedTuple):
    """Ports of a Valkey and of an HTTP server with certificates for `localhost`, by an authority that nobody trusts."""

    authority: Path
    redis_port: int
    http_port: int
    password: str


@pytest.fixture(scope="module")
def servers(valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("tls")
    context = serve_as(["localhost"], folder)
    with serve_gorush() as web, tls_in_front_of(valkey.port, context) as redis_port:
        web.socket = context.wrap_socket(web.socket, server_side=True)
        yield Servers(folder / "ca.pem", redis_port, web.server_port, valkey.password)


@contextmanager
def tls_in_front_of(port: int, context: ssl.SSLContext) -> Iterator[int]:
    """Yield the port of a server that ends TLS and passes everything on, as the bundled Valkey speaks none itself."""

    async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
        sink.close()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pass_on(reader, server_writer), pass_on(server_reader, writer))

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # handshakes that clients break off
    server = loop.run_until_complete(asyncio.start_server(accepted, "127.0.0.1", 0, ssl=context))
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield server.sockets[0].getsockname()[1]
    loop.call_soon_threadsafe(server.close)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(asyncio.sleep(0.05))
    loop.close()


def asked(servers: Servers, host: str, options: str = "", **environment: str) -> list[str]:
    """Return what a process with these settings prints."""
    web = f"https://{host}:{servers.http_port}"
    url = f"rediss://:{servers.password}@{host}:{servers.redis_port}/0{options}"
    settings = {"REDIS_URL": url, "GORUSH_URL": web, "WAKU_NODES": web, **environment}
    command = [sys.executable, "-W", "ignore", "-c", CLIENTS]
    ended = subprocess.run(
        command, cwd=PROJECT, env=os.environ | settings, capture_output=True, text=True, check=False, timeout=60
    )
    assert servers.password not in ended.stdout + ended.stderr
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


NONE_TAKES_IT = [*(f"{name} False" for name in NAMES), UNVERIFIED]


@pytest.mark.parametrize(
    ("host", "trusts", "answers"),
    [
        ("localhost", "nothing", NONE_TAKES_IT),
        ("127.0.0.1", "the authority", NONE_TAKES_IT),  # the certificate is for another name
        ("localhost", "the authority", [*(f"{name} True" for name in NAMES), "said "]),
        ("localhost", "it for Redis", [f"{name} True" for name in NAMES[:4]]),
    ],
)
def test_every_client_verifies_certificate_and_name_and_knows_the_authority_of_the_operator(
    servers: Servers, host: str, trusts: str, answers: list[str]
) -> None:
    options = f"?ssl_ca_certs={servers.authority}" if trusts == "it for Redis" else ""
    environment = {"SSL_CERT_FILE": str(servers.authority)} if trusts == "the authority" else {}
    assert asked(servers, host, options, **environment)[: len(answers)] == answers
