"""The config check against a development node with each of its faults, and against servers of other kinds."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from io import StringIO
from threading import Thread
from typing import Any

import httpx
import orjson
import pytest
from aiohttp import web
from django.conf import LazySettings
from django.core.cache import cache
from django.core.management import call_command
from structlog.testing import capture_logs

from embedded.node.node import NODE, Node, Settings
from embedded.node.server import create_app
from embedded.node.wire import write_enr
from embedded.servers.ports import free_port
from kit.http.notices import Notice
from waku_bridge.metrics import NODE_CLOCK_SKEW_SECONDS, NODE_HEALTHY, NODE_VERSION_TIMESTAMP_SECONDS
from waku_bridge.node.config_check import pages
from waku_bridge.node.config_check.checking import check_all
from waku_bridge.node.config_check.saved import NOTICES

SHARD = "/waku/2/rs/16/32"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
GOOD = Settings(shards=(SHARD,), relay_cache_capacity=1000)


class Served:
    """An application that runs on a thread of its own, because the check blocks the thread of the test."""

    def __init__(self, make: Callable[[], web.Application]) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self._start(make))

    async def _start(self, make: Callable[[], web.Application]) -> None:
        self.app = make()
        self._runner = web.AppRunner(self.app, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    def _run(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    def stop(self) -> None:
        self._run(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(autouse=True)
def empty_cache() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def serve(settings: LazySettings) -> Iterator[Any]:
    """Start an application and make it the only node of the settings."""
    running: list[Served] = []

    def start(make: Callable[[], web.Application]) -> Served:
        running.append(Served(make))
        settings.WAKU_PUBSUB_TOPICS = [SHARD]
        settings.WAKU_NODES = settings.WAKU_STORE_NODES = [running[-1].url]
        return running[-1]

    yield start
    for each in running:
        each.stop()


def devnode(serve: Any, node_settings: Settings = GOOD) -> tuple[str, Node]:
    served = serve(partial(create_app, node_settings))
    return served.url, served.app[NODE]


def answering(serve: Any, answer: Callable[[web.Request], Awaitable[web.Response]]) -> str:
    """Return the URL of a server that gives this answer to every request."""

    def make() -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        return app

    return serve(make).url


def noted(url: str, now: datetime = NOW) -> Notice:
    check_all(now=now)
    return NOTICES.read([url])[url]


def found(url: str, now: datetime = NOW) -> list[str]:
    return [complaint.id for complaint in noted(url, now).complaints]


def test_a_development_node_has_no_complaints(serve) -> None:
    url, _node = devnode(serve)
    notice = noted(url)
    assert notice.complaints == ()
    assert notice.memory == {
        "version": "nwaku 0.38.1",
        "health": "READY",
        "shards": "16: 32",
        "longest_page": 0,
    }


@pytest.mark.parametrize(
    ("switches", "ids"),
    [
        ({"no_peers": True}, ["no_peers"]),
        ({"starting": True}, ["not_ready"]),
        ({"clock_skew_ms": 30_000}, ["clock_skew"]),
        ({"clock_skew_ms": -30_000}, ["clock_skew"]),
        ({"store_no_peer": True}, ["no_store"]),
    ],
)
def test_a_fault_of_the_node_is_found(serve, switches: dict[str, object], ids: list[str]) -> None:
    url, node = devnode(serve)
    node.faults.update(switches)
    assert found(url) == ids


@pytest.mark.parametrize(
    ("node_settings", "ids"),
    [
        (Settings(shards=("/waku/2/rs/1/32",)), ["wrong_cluster"]),
        (Settings(shards=("/waku/2/rs/16/64",)), ["shard_not_served"]),
        (Settings(), ["shards_unknown"]),
    ],
)
def test_a_wrong_flag_of_the_node_is_found(serve, node_settings: Settings, ids: list[str]) -> None:
    url, _node = devnode(serve, node_settings)
    assert found(url) == ids


def test_a_node_that_relays_more_than_its_record_names_is_found(serve) -> None:
    """Measured on nwaku v0.38.1: --num-shards-in-network=65 joins all shards, and its record names those of --shard."""
    url, node = devnode(serve)
    for shard in range(65):
        node.subscribe(f"/waku/2/rs/16/{shard}")
    assert found(url) == ["other_shards"]
    assert noted(url).memory["shards"] == "16: 32"
    node.restart()
    assert found(url) == []
    node.unsubscribe(SHARD)
    assert found(url) == ["shard_not_served"]


def test_the_config_check_publishes_nothing(serve) -> None:
    _url, node = devnode(serve)
    check_all(now=NOW)
    assert node.published == 0


def test_an_operator_can_have_the_limit_of_the_message_size_checked(serve) -> None:
    url, node = devnode(serve, Settings(shards=(SHARD,), max_message_bytes=153_600))
    shown = StringIO()
    call_command("check_node", "--size", stdout=shown)
    assert "153600 bytes at most" in shown.getvalue()
    assert "--max-msg-size=1024KiB" in shown.getvalue()
    node.settings = GOOD
    shown = StringIO()
    call_command("check_node", url, "--size", stdout=shown)
    assert "Nothing is wrong" in shown.getvalue()
    left = httpx.get(f"{url}/dev/stats").json()
    assert (left["ring"], left["archived"], left["subscriptions"]) == (0, 0, [SHARD])


def test_a_check_without_the_size_publishes_nothing(serve) -> None:
    url, node = devnode(serve)
    call_command("check_node", stdout=StringIO())
    assert node.published == 0
    assert NOTICES.read([url]) == {}


def test_pages_stuck_at_the_default_size_are_found(serve) -> None:
    url, _node = devnode(serve)
    for size in (3, 50, 20, 50, 50):
        pages.note(url, size)
    assert found(url) == ["small_ring"]
    pages.note(url, 51)
    assert found(url) == []


def test_go_waku_is_recognised(serve) -> None:
    async def answer(request: web.Request) -> web.Response:
        bodies = {"/debug/v1/version": '"v0.10.0-"', "/debug/v1/info": '{"enrUri":"x","listenAddresses":[]}'}
        status = 501 if request.path == "/health" else 200 if request.path in bodies else 404
        return web.Response(status=status, text=bodies.get(request.path, "404 page not found\n"))

    assert found(answering(serve, answer)) == ["go_waku", "shards_unknown"]


def test_a_node_without_the_old_paths_is_read_all_the_same(serve) -> None:
    async def answer(request: web.Request) -> web.Response:
        bodies = {"/version": "v0.41.0", "/info": f'{{"enrUri":"{write_enr([SHARD], seq=1)}"}}'}
        return web.Response(status=200 if request.path in bodies else 404, text=bodies.get(request.path, ""))

    assert found(answering(serve, answer)) == []


@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff", orjson.dumps({"secret": "<b>"}), b"[" * 5000])
@pytest.mark.parametrize("status", [200, 302, 404, 500])
def test_the_config_check_survives_every_answer_and_quotes_none(serve, status: int, body: bytes) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=status, body=body)

    url = answering(serve, answer)
    assert "unknown_version" in found(url)
    assert "secret" not in repr(cache.get(NOTICES.cache.key(url)))


def test_the_findings_of_a_check_are_exported_as_metrics(serve) -> None:
    url, node = devnode(serve)
    node.faults.update({"clock_skew_ms": 30_000, "starting": True})
    check_all(now=NOW)
    host = url.removeprefix("http://")
    assert NODE_HEALTHY.labels(host)._value.get() == 0
    assert 28 <= NODE_CLOCK_SKEW_SECONDS.labels(host)._value.get() <= 31
    assert NODE_VERSION_TIMESTAMP_SECONDS.labels(host, "nwaku 0.38.1")._value.get() > 0


def test_a_node_that_does_not_listen_is_unreachable(settings: LazySettings) -> None:
    settings.WAKU_NODES = settings.WAKU_STORE_NODES = [f"http://127.0.0.1:{free_port()}"]
    assert found(settings.WAKU_NODES[0]) == ["unreachable"]


def test_a_complaint_is_logged_when_it_comes_and_when_it_goes_without_the_password(serve, settings) -> None:
    url, node = devnode(serve)
    settings.WAKU_NODES = settings.WAKU_STORE_NODES = [url.replace("http://", "http://user:secret@")]
    with capture_logs() as logs:
        node.faults.update({"clock_skew_ms": 30_000})
        check_all(now=NOW)
        check_all(now=NOW)
        node.faults.update({"clock_skew_ms": 0})
        check_all(now=NOW)
    assert [(log["event"], log["complaint"]) for log in logs] == [
        ("node_deviates", "clock_skew"),
        ("node_deviates_no_more", "clock_skew"),
    ]
    assert "secret" not in repr(logs)
