"""Tests of probing a server without a thread, because the probing process may have to fork."""

import asyncio
import threading

from embedded.servers.parts import answers, fetch, listens, pongs
from embedded.servers.ports import free_port
from embedded.servers.postgres import SOCKET_NAME


def test_a_redis_is_ready_only_with_its_password(valkey):
    assert asyncio.run(pongs(valkey.url))
    assert not asyncio.run(pongs(valkey.url.replace(valkey.password, "wrong")))


def test_a_postgres_is_ready_at_its_socket(postgres, tmp_path):
    assert asyncio.run(listens(postgres.socket_dir / SOCKET_NAME))
    assert not asyncio.run(listens(tmp_path / "nobody"))


def test_a_web_server_is_ready_when_it_answers_200(live_server):
    assert asyncio.run(answers(f"{live_server.url}/healthz"))
    assert not asyncio.run(answers(f"{live_server.url}/nowhere"))
    assert asyncio.run(fetch(f"{live_server.url}/healthz")) == (200, b'{"status": "ok"}')


def test_probing_an_absent_server_needs_no_thread():
    before = threading.active_count()
    assert asyncio.run(fetch(f"http://localhost:{free_port()}/healthz")) == (0, b"")
    assert threading.active_count() == before
