"""The pages "gorush configuration" and "Waku nodes" of the console, and the checks at the start of a worker."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.cache import cache
from django.test import Client
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from embedded.servers.ports import free_port
from kit.health import status_cache
from kit.health.complaints import Complaint
from kit.http.notices import CHECK_EVERY_SECONDS, Notice
from notifications.gateways.gorush.config_check.saved import NOTICES
from notifications.gateways.gorush.tasks import check_gorush
from pushserver import celery
from waku_bridge.node.config_check.saved import NOTICES as NODE_NOTICES
from waku_bridge.tasks import check_nodes

pytestmark = pytest.mark.django_db
PAGE = "/admin/gorush/"
NODES_PAGE = "/admin/nodes/"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
URL = "http://gorush.test:8088/path-key"
COMPLAINT = Complaint("not_sync", "core.sync is <off>", "Everything counts as delivered.", "Set GORUSH_CORE_SYNC=true.")


@pytest.fixture(autouse=True)
def one_gorush(settings: LazySettings) -> Iterator[None]:
    settings.GORUSH_URLS = [URL]
    cache.clear()
    yield
    cache.clear()


def text_of(client: Client) -> str:
    response = client.get(PAGE)
    assert response.status_code == 200
    return response.content.decode()


def test_the_page_shows_each_complaint_with_its_reason_and_what_to_do(admin_client: Client) -> None:
    NOTICES.save(Notice(URL, NOW, (COMPLAINT,), {"not_sync": NOW}, None))

    text = text_of(admin_client)

    for shown in ["gorush.test:8088", "not_sync", "core.sync is &lt;off&gt;", COMPLAINT.why, COMPLAINT.action]:
        assert shown in text
    assert "2026-11-21 12:00:00 UTC" in text
    assert "path-key" not in text


def test_the_page_reports_a_missing_check_and_one_without_complaints(admin_client: Client) -> None:
    assert "was not checked lately" in text_of(admin_client)
    NOTICES.save(Notice(URL, NOW, (), {}, None))
    assert "as it should be" in text_of(admin_client)


@pytest.mark.parametrize(
    ("page", "words"), [(PAGE, "No gorush is configured"), (NODES_PAGE, "No Waku node is configured")]
)
def test_the_page_reports_that_there_is_no_peer(
    admin_client: Client, settings: LazySettings, page: str, words: str
) -> None:
    settings.GORUSH_URLS = settings.WAKU_NODES = settings.WAKU_STORE_NODES = []
    assert words in admin_client.get(page).content.decode()


def test_without_the_cache_the_page_reports_a_missing_check(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_arguments: Any) -> None:
        raise RedisError

    monkeypatch.setattr(status_cache.cache, "get_many", away)
    assert "was not checked lately" in text_of(admin_client)


MEMORY = {
    "version": "nwaku 0.38.1",
    "health": "READY",
    "shards": "16: 32",
    "longest_page": 700,
}


def test_a_node_is_shown_with_what_it_said_and_what_is_wrong(admin_client: Client, settings: LazySettings) -> None:
    settings.WAKU_NODES = ["http://user:password@node.test:8645/path"]
    settings.WAKU_STORE_NODES = [*settings.WAKU_NODES, "http://store.test:8645"]
    NODE_NOTICES.save(Notice(settings.WAKU_NODES[0], NOW, (COMPLAINT,), {"not_sync": NOW}, MEMORY))

    text = admin_client.get(NODES_PAGE).content.decode()

    for shown in ["node.test:8645", "nwaku 0.38.1", "16: 32", "700 messages", COMPLAINT.action]:
        assert shown in text
    assert "store.test:8645" in text
    assert "was not checked lately" in text
    assert "password" not in text


def test_a_value_missing_from_an_answer_of_a_node_is_shown_as_unknown(
    admin_client: Client, settings: LazySettings
) -> None:
    settings.WAKU_NODES = settings.WAKU_STORE_NODES = ["http://node.test:8645"]
    unknown = MEMORY | {"version": "", "health": "", "shards": "", "longest_page": 0}
    NODE_NOTICES.save(Notice(settings.WAKU_NODES[0], NOW, (), {}, unknown))

    text = admin_client.get(NODES_PAGE).content.decode()

    for unsaid in ("Version</dt><dd>not known", "Health</dt><dd>not reported"):
        assert unsaid in text


@pytest.mark.parametrize("page", [PAGE, NODES_PAGE])
def test_cannot_be_changed(admin_client: Client, page: str) -> None:
    assert admin_client.post(page).status_code == 405


@pytest.mark.parametrize("page", [PAGE, NODES_PAGE])
def test_the_start_page_leads_to_it(admin_client: Client, page: str) -> None:
    assert f'href="{page}"' in admin_client.get("/admin/").content.decode()


@pytest.mark.parametrize(("queues", "is_asked"), [(["maintenance", "reports"], True), (["batches"], False)])
def test_a_worker_for_maintenance_runs_the_checks_when_it_starts(
    monkeypatch: pytest.MonkeyPatch, queues: list[str], is_asked: bool
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(celery.app.amqp.queues, "_consume_from", dict.fromkeys(queues))
    monkeypatch.setattr(celery.app, "send_task", lambda name, **_options: sent.append(name))
    monkeypatch.setitem(celery.app.conf.beat_schedule, "canary", {"task": "waku_bridge.tasks.run_canary"})

    celery.check_at_start()

    checks = [
        "notifications.gateways.gorush.tasks.check_gorush",
        "waku_bridge.tasks.check_nodes",
        "waku_bridge.tasks.run_canary",
    ]
    assert sorted(sent) == (checks if is_asked else [])


def test_the_task_looks_at_every_gorush_of_the_settings(settings: LazySettings) -> None:
    settings.GORUSH_URLS = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]

    check_gorush()

    assert [notice.complaints[0].id for notice in NOTICES.read(settings.GORUSH_URLS).values()] == ["unreachable"] * 2


def test_the_task_looks_at_every_node_of_the_settings(settings: LazySettings) -> None:
    live, store = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    settings.WAKU_NODES, settings.WAKU_STORE_NODES = [live], [live, store]

    check_nodes()

    assert [notice.complaints[0].id for notice in NODE_NOTICES.read([live, store]).values()] == ["unreachable"] * 2


@pytest.mark.parametrize("task", [check_gorush, check_nodes])
def test_beat_schedules_the_checks(settings: LazySettings, task: Any) -> None:
    entry = settings.CELERY_BEAT_SCHEDULE[task.name.rpartition(".")[2]]
    assert (entry["task"], entry["schedule"]) == (task.name, CHECK_EVERY_SECONDS)


def test_a_worker_starts_without_the_broker_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_arguments: Any, **_options: Any) -> None:
        raise OperationalError

    monkeypatch.setattr(celery.app, "send_task", away)
    celery.check_at_start()
