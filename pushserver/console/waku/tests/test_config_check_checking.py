"""The config check against a development node with each of its faults, and against servers of other kinds."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from io import StringIO
from typing import Any

import httpx
import orjson
import pytest
from aiohttp import web
from django.conf import LazySettings
from django.core.cache import cache
from django.core.management import call_command

from embedded.node.node import NODE, Node, Settings
from embedded.node.server import create_app
from embedded.node.wire import write_enr
from embedded.servers.ports import free_port
from pushserver.console.checks.engine import Notice
from pushserver.console.checks.nodes import NOTICES, about_clock, check_all
from pushserver.console.waku.metrics import NODE_CLOCK_SKEW_SECONDS, NODE_HEALTHY, NODE_VERSION_TIMESTAMP_SECONDS
from pushserver.console.waku.part import clock_of
from tests.rig.logs import capture_logs
from tests.rig.peers import served
from waku_bridge.reading.live import LastRead, note_page

SHARD = "/waku/2/rs/16/32"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
GOOD = Settings(shards=(SHARD,), relay_cache_capacity=1000)


@pytest.fixture(autouse=True)
def empty_cache() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def serve(settings: LazySettings) -> Iterator[Callable[..., tuple[str, web.Application]]]:
    """Start an application and make it the only node of the settings."""
    with ExitStack() as running:

        def start(make: Callable[[], web.Application]) -> tuple[str, web.Application]:
            url, app = running.enter_context(served(make))
            settings.WAKU_PUBSUB_TOPICS = [SHARD]
            settings.WAKU_NODES = settings.WAKU_STORE_NODES = [url]
            return url, app

        yield start


def devnode(serve: Any, node_settings: Settings = GOOD) -> tuple[str, Node]:
    url, app = serve(partial(create_app, node_settings))
    return url, app[NODE]


def answering(serve: Any, answer: Callable[[web.Request], Awaitable[web.Response]]) -> str:
    """Return the URL of a server that gives this answer to every request."""

    def make() -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        return app

    url, _ = serve(make)
    return str(url)


def noted(url: str) -> Notice:
    check_all(now=NOW)
    return NOTICES.read([url])[url]


def found(url: str) -> list[str]:
    return [complaint.id for complaint in noted(url).complaints]


def test_a_development_node_has_no_complaints(serve) -> None:
    url, _node = devnode(serve)
    notice = noted(url)
    assert notice.complaints == ()
    shown = {"version": "nwaku 0.38.1", "health": "READY", "cluster and shards": "16: 32"}
    assert notice.facts == shown | {"longest page": "shorter than 30 messages"}


@pytest.mark.parametrize(
    ("node_settings", "switches", "ids"),
    [
        (GOOD, {"no_peers": True}, ["no_peers"]),
        (GOOD, {"starting": True}, ["not_ready"]),
        (GOOD, {"clock_skew_ms": 30_000}, ["clock_skew"]),
        (GOOD, {"clock_skew_ms": -30_000}, ["clock_skew"]),
        (GOOD, {"store_no_peer": True}, ["no_store"]),
        (Settings(shards=("/waku/2/rs/1/32",)), {}, ["wrong_cluster"]),
        (Settings(shards=("/waku/2/rs/16/64",)), {}, ["shard_not_served"]),
        (Settings(), {}, ["shards_unknown"]),
    ],
)
def test_a_fault_and_a_wrong_flag_of_the_node_are_found(serve, node_settings, switches, ids) -> None:
    url, node = devnode(serve, node_settings)
    node.faults.update(switches)
    assert found(url) == ids


def test_a_node_that_relays_more_than_its_record_names_is_found(serve) -> None:
    """Measured on nwaku v0.38.1: --num-shards-in-network=65 joins all shards, and its record names those of --shard."""
    url, node = devnode(serve)
    for shard in range(65):
        node.subscribe(f"/waku/2/rs/16/{shard}")
    assert found(url) == ["other_shards"]
    assert noted(url).facts["cluster and shards"] == "16: 32"
    node.restart()
    assert found(url) == []
    node.unsubscribe(SHARD)
    assert found(url) == ["shard_not_served"]


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
    assert httpx.get(f"{url}/store/v3/messages").json()["messages"] == []
    assert (len(node.ring), node.ring.topics) == (0, {SHARD})


def test_a_check_without_the_size_publishes_nothing(serve) -> None:
    url, node = devnode(serve)
    call_command("check_node", stdout=StringIO())
    assert NOTICES.read([url]) == {}
    check_all(now=NOW)
    assert node.published == 0


def test_pages_stuck_at_the_default_size_are_found(serve) -> None:
    url, _node = devnode(serve)
    for size in (3, 50, 20, 50, 50):
        note_page(url, size)
    assert found(url) == ["small_ring"]
    note_page(url, 51)
    assert found(url) == []


OF_GO_WAKU = {"/debug/v1/version": '"v0.10.0-"', "/debug/v1/info": '{"enrUri":"x","listenAddresses":[]}'}
WITHOUT_OLD_PATHS = {"/version": "v0.41.0", "/info": f'{{"enrUri":"{write_enr([SHARD], seq=1)}"}}'}


@pytest.mark.parametrize(
    ("bodies", "health", "ids"), [(OF_GO_WAKU, 501, ["go_waku", "shards_unknown"]), (WITHOUT_OLD_PATHS, 404, [])]
)
def test_go_waku_and_nodes_without_the_old_paths_are_read(
    serve, bodies: dict[str, str], health: int, ids: list[str]
) -> None:
    async def answer(request: web.Request) -> web.Response:
        status = health if request.path == "/health" else 200 if request.path in bodies else 404
        return web.Response(status=status, text=bodies.get(request.path, "404 page not found\n"))

    assert found(answering(serve, answer)) == ids


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


@pytest.mark.parametrize(
    ("skew_seconds", "problems"),
    [
        (None, ["its clock is 12 s ahead of ours"]),  # it does not report the time: the finding of the check stands
        (0.5, []),  # it was corrected since the check
        (-30.0, ["its clock is 30 s behind ours"]),
    ],
)
def test_the_clock_of_the_last_read_overrides_the_finding_of_the_config_check(
    skew_seconds: float | None, problems: list[str]
) -> None:
    url = "http://node.example:8645"
    complaint = about_clock(12.0)
    assert complaint
    NOTICES.note(url, [complaint], known=None, now=NOW)
    read = LastRead(NOW, skew_seconds)
    (peer,) = NOTICES.peers({url: True}, is_blind=False, seen={url: clock_of(read)})
    assert [found.problem for found, _since in peer.complaints] == problems
