"""The pages "gorush configuration" and "Waku nodes" of the console, and the checks at the start of a worker."""

from datetime import UTC, datetime
from unittest.mock import Mock

import pytest
from django.core.cache import cache
from django.test import Client
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from embedded.servers.ports import free_port
from kit.processes import status
from pushserver import celery
from pushserver.console.checks.engine import CHECK_EVERY_SECONDS, Notice
from pushserver.console.checks.gorush import NOTICES
from pushserver.console.checks.nodes import NOTICES as NODE_NOTICES
from pushserver.console.checks.peers import Complaint
from pushserver.console.tasks import check_at_start, check_gorush, check_nodes

pytestmark = pytest.mark.django_db
PAGE = "/admin/gorush/"
NODES_PAGE = "/admin/nodes/"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
URL = "http://gorush.test:8088/path-key"
COMPLAINT = Complaint("not_sync", "core.sync is <off>", "Everything counts as delivered.", "Set GORUSH_CORE_SYNC=true.")


@pytest.fixture(autouse=True)
def one_gorush(settings):
    settings.GORUSH_URLS = [URL]
    cache.clear()
    yield
    cache.clear()


def text_of(client: Client) -> str:
    response = client.get(PAGE)
    assert response.status_code == 200
    return response.content.decode()


def test_the_page_shows_each_complaint_with_its_reason_and_what_to_do(admin_client):
    NOTICES.save(Notice(URL, NOW, (COMPLAINT,), {"not_sync": NOW}, None))

    text = text_of(admin_client)

    for shown in ["gorush.test:8088", "not_sync", "core.sync is &lt;off&gt;", COMPLAINT.why, COMPLAINT.action]:
        assert shown in text
    assert "2026-11-21 12:00:00 UTC" in text
    assert "path-key" not in text


def test_the_page_reports_a_missing_check_and_one_without_complaints(admin_client, monkeypatch):
    assert "was not checked lately" in text_of(admin_client)
    NOTICES.save(Notice(URL, NOW, (), {}, None))
    assert "as it should be" in text_of(admin_client)
    monkeypatch.setattr(status.cache, "get_many", Mock(side_effect=RedisError))
    assert "was not checked lately" in text_of(admin_client)


@pytest.mark.parametrize(
    ("page", "words"), [(PAGE, "No gorush is configured"), (NODES_PAGE, "No Waku node is configured")]
)
def test_a_page_without_peers_says_so_is_on_the_start_page_and_cannot_be_changed(admin_client, settings, page, words):
    settings.GORUSH_URLS = settings.WAKU_NODES = settings.WAKU_STORE_NODES = []
    assert words in admin_client.get(page).content.decode()
    assert f'href="{page}"' in admin_client.get("/admin/").content.decode()
    assert admin_client.post(page).status_code == 405


FACTS = {"version": "nwaku 0.38.1", "cluster and shards": "16: 32", "longest page": "700 messages"}


def test_a_node_is_shown_with_what_it_said_and_what_is_wrong(admin_client, settings):
    [node] = settings.WAKU_NODES = ["http://user:password@node.test:8645/path"]
    settings.WAKU_STORE_NODES = [node, "http://store.test:8645"]
    NODE_NOTICES.save(Notice(node, NOW, (COMPLAINT,), {"not_sync": NOW}, None, FACTS))

    text = admin_client.get(NODES_PAGE).content.decode()

    for shown in ["node.test:8645", "nwaku 0.38.1", "16: 32", "700 messages", COMPLAINT.action]:
        assert shown in text
    assert "store.test:8645" in text
    assert "was not checked lately" in text
    assert "password" not in text


@pytest.mark.parametrize(("queues", "is_asked"), [(["maintenance", "reports"], True), (["batches"], False)])
def test_a_worker_for_maintenance_runs_the_checks_when_it_starts(monkeypatch, queues, is_asked):
    """It starts without the broker, too."""
    sent: list[str] = []
    monkeypatch.setattr(celery.app.amqp.queues, "_consume_from", dict.fromkeys(queues))
    monkeypatch.setattr(celery.app, "send_task", lambda name, **_options: sent.append(name))
    monkeypatch.setitem(celery.app.conf.beat_schedule, "canary", {"task": "waku_bridge.tasks.run_canary"})

    check_at_start()

    checks = [check_gorush.name, check_nodes.name, "waku_bridge.tasks.run_canary"]
    assert sorted(sent) == (checks if is_asked else [])
    monkeypatch.setattr(celery.app, "send_task", Mock(side_effect=OperationalError))
    check_at_start()


def test_the_tasks_look_at_every_peer_of_the_settings_and_beat_schedules_them(settings):
    gorush, live, store = (f"http://127.0.0.1:{free_port()}" for _ in range(3))
    settings.GORUSH_URLS, settings.WAKU_NODES, settings.WAKU_STORE_NODES = [gorush], [live], [live, store]
    for check, saved, peers in ((check_gorush, NOTICES, [gorush]), (check_nodes, NODE_NOTICES, [live, store])):
        check()
        assert [notice.complaints[0].id for notice in saved.read(peers).values()] == ["unreachable"] * len(peers)
        entry = settings.BEAT_SCHEDULE[check.name.rpartition(".")[2]]
        assert (entry["task"], entry["schedule"]) == (check.name, CHECK_EVERY_SECONDS)
