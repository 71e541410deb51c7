"""Links with TLS: every client verifies certificate and name of its server, and trusts an operator's own authority."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGTERM

import pytest

from embedded.servers.ports import free_port, is_free
from embedded.supervisor.guard import Guard
from embedded.supervisor.processes import PROJECT
from tests.rig.peers import serve_gorush
from tests.rig.providers.certificates import serve_as
from tests.rig.server import wait_until

PASSWORD = "0f-this-test"
# Each client of the server is asked once, and prints whether it takes the certificate.
CLIENTS = """
import django; django.setup()
from django.conf import settings
from django.core.cache import cache
from kit.http import lasting_connections, submit
from pushserver.console.gorush.part import ask
from pushserver.celery import app
from pushserver.console.health.asking import ask_broker
from pushserver.metrics import _ask_broker

def takes(work):
    try:
        return bool(work())
    except Exception:
        return False

node = lasting_connections(silent_seconds=5)
for name, work in {
    "celery": lambda: app.connection_for_write(connect_timeout=5).default_channel.client.ping(),
    "cache": lambda: cache.add("tls", 1) or True,
    "probe": lambda: not ask_broker(),
    "metrics": lambda: list(_ask_broker()),
    "gorush": lambda: all(ask()["gorush_is_up"].values()),
    "node": lambda: submit(node.request("GET", settings.WAKU_NODES[0])).result(10).status == 200,
}.items():
    print(name, takes(work))
print("said", ask_broker().partition(":")[0])
"""
NAMES = ("celery", "cache", "probe", "metrics", "gorush", "node")
UNVERIFIED = "said Redis has no valid certificate for the host of REDIS_URL"


@pytest.fixture(scope="module")
def servers(
    guard: Guard, require_or_skip: Callable[[bool, str], None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, int, int]]:
    """Start Debian's Redis, as the bundled Valkey speaks no TLS, and an HTTP server, with certificates for `localhost`.

    Yield the authority, which nobody trusts, and their ports.
    """
    program = shutil.which("redis-server") or ""
    require_or_skip(bool(program), "there is no Redis: `make test` as root installs it")
    context, port = serve_as(["localhost"], folder := tmp_path_factory.mktemp("tls")), free_port()
    options = ["--bind", "127.0.0.1", "--port", "0", "--tls-port", str(port), "--tls-auth-clients", "no"]
    options += ["--tls-cert-file", "leaf.pem", "--tls-key-file", "leaf.pem", "--tls-ca-cert-file", "ca.pem"]
    command = [program, *options, "--requirepass", PASSWORD, "--appendonly", "yes"]
    with serve_gorush() as web, subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as redis:
        guard.watch(redis.pid, SIGTERM)
        try:
            wait_until(lambda: not is_free("127.0.0.1", port), what="Redis listens")
            web.socket = context.wrap_socket(web.socket, server_side=True)
            yield folder / "ca.pem", port, web.server_port
        finally:
            redis.terminate()
            guard.forget(redis.pid)


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
    servers: tuple[Path, int, int], host: str, trusts: str, answers: list[str]
) -> None:
    authority, redis_port, http_port = servers
    options = f"?ssl_ca_certs={authority}" if trusts == "it for Redis" else ""
    given = {"SSL_CERT_FILE": str(authority)} if trusts == "the authority" else {}
    given |= dict.fromkeys(("GORUSH_URL", "WAKU_NODES"), f"https://{host}:{http_port}")
    given["REDIS_URL"] = f"rediss://:{PASSWORD}@{host}:{redis_port}/0{options}"
    command = [sys.executable, "-W", "ignore", "-c", CLIENTS]
    ended = subprocess.run(
        command, cwd=PROJECT, env=os.environ | given, capture_output=True, text=True, check=False, timeout=180
    )
    assert PASSWORD not in ended.stdout + ended.stderr
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[: len(answers)] == answers
