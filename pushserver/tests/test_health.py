import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
from django.conf import LazySettings
from django.core.cache import cache
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client

from kit.db.statements import fetch
from kit.http.complaints import Complaint
from kit.http.notices import Board, Notice
from notifications import halts
from notifications.gateways.gorush.config_check.board import BOARD as GORUSH_BOARD
from notifications.metrics import PUSHES_STOPPED
from pushserver.celery import HEARTBEAT_KEY
from pushserver.embedded.ports import free_port
from pushserver.embedded.postgres import EmbeddedPostgres
from pushserver.health import NEEDED_QUEUES
from tests import factories
from tests.gorush import serve_gorush
from waku_bridge.canary import board
from waku_bridge.node.config_check.board import BOARD as NODE_BOARD
from waku_bridge.reading.live import LAST_READ_KEY
from xmpp_bridge.canary import board as xmpp_board
from xmpp_bridge.component import board as component

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
NODE_URL = "http://reader:secret-of-the-node@127.0.0.1:8645/path-key"


@pytest.fixture
def gorush() -> Iterator[ThreadingHTTPServer]:
    with serve_gorush() as server:
        yield server


@pytest.fixture
def all_well(db: None, settings: LazySettings, gorush: ThreadingHTTPServer) -> Iterator[None]:
    settings.WAKU_NODES = [NODE_URL]
    settings.GORUSH_URLS = [f"http://127.0.0.1:{gorush.server_port}"]
    cache.set(LAST_READ_KEY.format(url=NODE_URL), "2026-01-01T00:00:00+00:00", 60)
    for queue in NEEDED_QUEUES:
        cache.set(HEARTBEAT_KEY.format(queue=queue), "2026-01-01T00:00:00+00:00", 60)
    yield
    cache.clear()


def test_healthz_answers_without_touching_anything(client: Client, settings: LazySettings) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"

    response = client.get("/healthz")

    assert (response.status_code, response.json()) == (200, {"status": "ok"})


@pytest.mark.usefixtures("all_well")
def test_is_ready_when_every_part_is(client: Client) -> None:
    response = client.get("/readyz")

    assert response.status_code == 200, response.content
    assert response.json()["status"] == "ready"
    assert set(response.json()["checks"]) == {"database", "broker", "node", "gorush", "worker"}


@pytest.mark.usefixtures("all_well")
@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (component.CONNECTED, None),
        ("conflict", component.WORDS["conflict"]),
        ("not-authorized", component.WORDS["not-authorized"]),
        ("reset", component.OTHERWISE),
        (None, component.MISSING),
    ],
)
def test_says_what_is_wrong_with_the_xmpp_component_where_there_is_one(
    client: Client, settings: LazySettings, end: str | None, reason: str | None
) -> None:
    settings.XMPP_COMPONENT_JID = "push.montague.test"
    cache.delete(component.KEY)
    if end:
        component.note(end)

    check = client.get("/readyz").json()["checks"]["xmpp"]

    assert check == ({"ok": True} if reason is None else {"ok": False, "reason": reason})


@pytest.mark.usefixtures("all_well")
def test_no_probe_is_cached(client: Client) -> None:
    assert all("no-store" in client.get(path)["Cache-Control"] for path in ("/healthz", "/readyz"))


@pytest.mark.usefixtures("all_well")
def test_however_often_it_is_asked_the_servers_behind_are_asked_once(
    client: Client, settings: LazySettings, gorush: ThreadingHTTPServer
) -> None:
    client.get("/readyz")
    settings.READYZ_SECONDS = 60

    answers = [client.get("/readyz") for _ in range(100)]

    assert {answer.status_code for answer in answers} == {200}
    assert gorush.RequestHandlerClass.asked == 1  # type: ignore[attr-defined]


@pytest.mark.usefixtures("all_well")
def test_browsers_that_came_by_https_are_told_to_come_by_nothing_else(client: Client, settings: LazySettings) -> None:
    settings.SECURE_HSTS_SECONDS = 31_536_000
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

    secured = client.get("/healthz", headers={"x-forwarded-proto": "https"})

    assert secured["Strict-Transport-Security"] == "max-age=31536000"
    assert "Strict-Transport-Security" not in client.get("/healthz")


@pytest.mark.django_db(transaction=True)
def test_a_table_of_registrations_that_fills_is_a_warning(
    client: Client, settings: LazySettings, all_well: None
) -> None:
    for _ in range(4):
        factories.make_registration()
    factories.make_device()
    for registrations, devices, warned in ((6, 2, []), (5, 2, ["MAX_REGISTRATIONS"]), (6, 1, ["XMPP_MAX_DEVICES"])):
        settings.MAX_REGISTRATIONS, settings.XMPP_MAX_DEVICES = registrations, devices
        warnings = client.get("/readyz").json()["warnings"]
        filling = [each["what"] for each in warnings if each["id"] == "registrations_filling"]
        assert [what.rpartition(" ")[2] for what in filling] == warned


@pytest.mark.usefixtures("all_well")
def test_names_a_database_that_does_not_answer(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "HOST", "127.0.0.1")
    monkeypatch.setitem(connection.settings_dict, "PORT", free_port())

    assert failing(client) == {"database": "PostgreSQL does not answer"}


@pytest.mark.django_db(transaction=True)
def test_names_migrations_that_are_missing(client: Client, all_well: None) -> None:
    recorder = MigrationRecorder(connection)
    recorder.record_unapplied("registrations", "0001_initial")
    try:
        assert failing(client) == {"database": "migrations not applied: 1"}
    finally:
        recorder.record_applied("registrations", "0001_initial")


@pytest.mark.usefixtures("all_well")
def test_names_a_broker_that_does_not_answer(client: Client, settings: LazySettings) -> None:
    settings.REDIS_URL = f"redis://:secret-of-redis@127.0.0.1:{free_port()}/0"

    assert failing(client) == {"broker": "Redis does not answer"}


@pytest.mark.usefixtures("all_well")
def test_one_node_that_is_read_is_enough(client: Client, settings: LazySettings) -> None:
    settings.WAKU_NODES = [NODE_URL, "http://127.0.0.2:8645"]

    check = client.get("/readyz").json()["checks"]["node"]

    assert check == {"ok": True, "parts": {"127.0.0.1:8645": True, "127.0.0.2:8645": False}}


@pytest.mark.usefixtures("all_well")
@pytest.mark.parametrize("nodes", [["http://127.0.0.2:8645"], []], ids=["not read", "none configured"])
def test_names_nodes_that_are_not_read(client: Client, settings: LazySettings, nodes: list[str]) -> None:
    settings.WAKU_NODES = nodes

    assert failing(client) == {"node": "no node was read lately"}


@pytest.mark.usefixtures("all_well")
def test_one_gorush_that_answers_is_enough(client: Client, settings: LazySettings) -> None:
    settings.GORUSH_URLS = [f"http://127.0.0.1:{free_port()}", *settings.GORUSH_URLS]

    assert client.get("/readyz").status_code == 200


@pytest.mark.usefixtures("all_well")
def test_a_gorush_without_that_path_still_answers(client: Client, gorush: ThreadingHTTPServer) -> None:
    gorush.RequestHandlerClass.status = 404

    assert client.get("/readyz").status_code == 200


@pytest.mark.usefixtures("all_well")
def test_names_a_gorush_that_is_broken(client: Client, gorush: ThreadingHTTPServer) -> None:
    gorush.RequestHandlerClass.status = 502

    assert failing(client) == {"gorush": "no gorush answers"}


@pytest.mark.usefixtures("all_well")
def test_names_a_gorush_that_does_not_listen(client: Client, settings: LazySettings) -> None:
    settings.GORUSH_URLS = [f"http://127.0.0.1:{free_port()}"]

    assert failing(client) == {"gorush": "no gorush answers"}


@pytest.mark.usefixtures("all_well")
@pytest.mark.parametrize("queue", NEEDED_QUEUES)
def test_names_a_queue_without_a_worker(client: Client, queue: str) -> None:
    cache.delete(HEARTBEAT_KEY.format(queue=queue))

    assert failing(client) == {"worker": "queues without a worker"}
    assert client.get("/readyz").json()["checks"]["worker"]["parts"][queue] is False


@pytest.mark.usefixtures("all_well")
def test_no_credential_is_in_an_answer(client: Client, settings: LazySettings) -> None:
    settings.REDIS_URL = f"redis://:secret-of-redis@127.0.0.1:{free_port()}/0"
    settings.GORUSH_URLS = [f"http://user:secret-of-gorush@127.0.0.1:{free_port()}/path-key?key=secret"]

    answer = client.get("/readyz").content.decode()

    assert not [word for word in ("secret", "user", "reader", "path-key") if word in answer]


@pytest.mark.usefixtures("all_well")
def test_not_being_ready_is_not_logged_as_an_error(
    client: Client, settings: LazySettings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.WAKU_NODES = []

    with caplog.at_level(logging.DEBUG):
        assert client.get("/readyz").status_code == 503

    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("arguments", "queues"),
    [
        (["--pool=prefork", "--concurrency=1", "--queues=batches"], {"batches"}),
        (["--pool=threads", "--concurrency=1", "--queues=maintenance,keys,canary"], {"maintenance", "keys"}),
    ],
    ids=["prefork", "threads"],
)
@pytest.mark.django_db(transaction=True)
def test_a_worker_tells_which_queues_it_serves(
    arguments: list[str], queues: set[str], postgres: EmbeddedPostgres
) -> None:
    cache.clear()
    command = [sys.executable, "-m", "celery", "--app=pushserver", "worker", *arguments]
    environment = os.environ | {"DATABASE_URL": postgres.url(connection.settings_dict["NAME"])}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as worker:
        try:
            assert becomes_true(lambda: served_queues() == queues, seconds=30)
        finally:
            worker.terminate()
    cache.clear()


def served_queues() -> set[str]:
    return {queue for queue in NEEDED_QUEUES if cache.get(HEARTBEAT_KEY.format(queue=queue))}


def becomes_true(condition: Callable[[], bool], *, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def failing(client: Client) -> dict[str, str]:
    """Return the reason of each check that failed."""
    response = client.get("/readyz")
    assert response.status_code == 503, response.content
    assert response.json()["status"] == "not ready"
    return {name: check["reason"] for name, check in json.loads(response.content)["checks"].items() if not check["ok"]}


PEERS = [(GORUSH_BOARD, "GORUSH_URLS"), (NODE_BOARD, "WAKU_NODES")]


def warnings(client: Client, board: Board) -> list[dict[str, str]]:
    """Return the warnings about one kind of peer, in an answer that is ready."""
    response = client.get("/readyz")
    assert response.status_code == 200
    return [warning for warning in response.json()["warnings"] if board.peer in warning]


@pytest.mark.usefixtures("all_well")
@pytest.mark.parametrize(("board", "setting"), PEERS)
def test_a_complaint_is_a_warning_and_no_reason_to_be_unready(
    client: Client, settings: LazySettings, board: Board, setting: str
) -> None:
    (url,) = getattr(settings, setting)
    board.pin(Notice(url, NOW, (Complaint("wrong", "this is off", "why", "todo"),), {"wrong": NOW}, None))

    host = urlsplit(url).netloc.rpartition("@")[2]
    assert warnings(client, board) == [{board.peer: host, "id": "wrong", "what": "this is off"}]


@pytest.mark.usefixtures("all_well")
@pytest.mark.parametrize(("board", "setting"), PEERS)
def test_a_peer_without_complaints_has_no_warning(
    client: Client, settings: LazySettings, board: Board, setting: str
) -> None:
    board.pin(Notice(getattr(settings, setting)[0], NOW, (), {}, None))
    assert warnings(client, board) == []


@pytest.mark.usefixtures("all_well")
@pytest.mark.parametrize("board", [GORUSH_BOARD, NODE_BOARD])
def test_a_peer_that_nobody_looked_at_is_a_warning(client: Client, board: Board) -> None:
    assert [warning["id"] for warning in warnings(client, board)] == ["not_watched"]


@pytest.mark.usefixtures("all_well")
def test_a_node_that_is_only_asked_for_its_store_is_watched_too(client: Client, settings: LazySettings) -> None:
    settings.WAKU_STORE_NODES = [*settings.WAKU_NODES, "http://store.test:8645"]
    assert {"node": "store.test:8645"}.items() <= warnings(client, NODE_BOARD)[-1].items()


@pytest.mark.usefixtures("all_well")
def test_a_broken_canary_is_a_warning_in_words(client: Client, settings: LazySettings) -> None:
    settings.CANARY_PERIOD_SECONDS = 60
    run = factories.make_canary_run(state="broken", broken_link="register_answer", cause="bridge")
    board.pin(run)

    answer = client.get("/readyz")

    assert answer.status_code == 200
    warning = {"canary": "register_answer", "id": "canary_bridge", "what": "the bridge does not read what a node took"}
    assert [found for found in answer.json()["warnings"] if "canary" in found] == [warning]


@pytest.mark.usefixtures("all_well")
def test_a_canary_that_does_not_run_is_a_warning(client: Client, settings: LazySettings) -> None:
    settings.CANARY_PERIOD_SECONDS = 60
    assert "canary_missing" in [found["id"] for found in client.get("/readyz").json()["warnings"]]
    board.pin(factories.make_canary_run())
    assert [found for found in client.get("/readyz").json()["warnings"] if "canary" in found] == []


@pytest.mark.usefixtures("all_well")
def test_a_broken_canary_of_xmpp_is_a_warning_in_words(client: Client, settings: LazySettings) -> None:
    settings.CANARY_PERIOD_SECONDS, settings.XMPP_COMPONENT_JID = 60, "push.montague.test"
    ids = [found["id"] for found in client.get("/readyz").json()["warnings"]]
    assert "xmpp_canary_missing" in ids
    xmpp_board.pin(factories.make_xmpp_canary_run(state="broken", broken_link="push", cause="xmpp_server"))
    what = "the XMPP server does not route to the component"
    warning = {"xmpp_canary": "push", "id": "xmpp_canary_xmpp_server", "what": what}
    assert [found for found in client.get("/readyz").json()["warnings"] if "xmpp_canary" in found] == [warning]


@pytest.mark.usefixtures("all_well")
def test_a_canary_that_is_switched_off_is_not_missed(client: Client, settings: LazySettings) -> None:
    assert settings.CANARY_PERIOD_SECONDS == 0
    assert [found for found in client.get("/readyz").json()["warnings"] if "canary" in found] == []


@pytest.mark.django_db(transaction=True)
def test_while_delivery_is_stopped_it_says_so_without_saying_why(client: Client) -> None:
    halts.start_draining(by="ann", why="a word for colleagues", now=NOW)

    answer = client.get("/readyz")

    found = [warning for warning in answer.json()["warnings"] if warning["id"] == "draining"]
    assert found[0]["what"].endswith("since 2026-11-21 12:00:00 UTC")
    assert "colleagues" not in answer.content.decode()
    halts.stop_draining()
    assert "draining" not in client.get("/readyz").content.decode()


@pytest.mark.django_db(transaction=True)
def test_when_every_channel_with_users_is_halted_each_is_named(client: Client) -> None:
    factories.make_channel((1, "im.one"))
    factories.make_channel((1, "im.two"))
    factories.make_halt("paused", (1, "im.one"), by="ann", reason="a word for colleagues", since=NOW)
    assert stopped(client) == ([], 0)

    factories.make_halt("tripped", (1, "im.two"), since=NOW)

    [warning], metric = stopped(client)
    assert metric == 1
    assert warning["id"] == "channels_halted"
    assert "APN im.one paused since 2026-11-21 12:00:00 UTC, APN im.two tripped since" in warning["what"]
    assert "colleagues" not in warning["what"]
    assert "ann" not in warning["what"].replace("channel", "")


def stopped(client: Client) -> tuple[list[dict[str, str]], int]:
    """Return the warning and the metric about a standstill, which have to agree."""
    warnings = [found for found in client.get("/readyz").json()["warnings"] if found.get("server") == "delivery"]
    [(metric,)] = fetch(PUSHES_STOPPED.sql)
    return warnings, metric
