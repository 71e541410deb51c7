"""The console's page "gorush configuration", and the look that is taken when a worker starts."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.cache import cache
from django.test import Client
from kombu.exceptions import OperationalError

from notifications.gateways.gorush.watch import board
from notifications.gateways.gorush.watch.board import Notice
from notifications.gateways.gorush.watch.rules import Deviation
from pushserver import celery
from pushserver.embedded.ports import free_port
from waku_bridge import tasks

pytestmark = pytest.mark.django_db
PAGE = "/admin/gorush/"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
URL = "http://gorush.test:8088/path-key"
DEVIATION = Deviation("not_sync", "core.sync is <off>", "Everything counts as delivered.", "Set GORUSH_CORE_SYNC=true.")


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


def test_shows_each_deviation_with_its_reason_and_what_to_do(admin_client: Client) -> None:
    board.pin(Notice(URL, NOW, (DEVIATION,), {"not_sync": NOW}, None))

    text = text_of(admin_client)

    for shown in ["gorush.test:8088", "not_sync", "core.sync is &lt;off&gt;", DEVIATION.why, DEVIATION.action]:
        assert shown in text
    assert "2026-11-21 12:00:00 UTC" in text
    assert "path-key" not in text


def test_says_so_when_everything_is_as_it_should_be(admin_client: Client) -> None:
    board.pin(Notice(URL, NOW, (), {}, None))
    assert "as it should be" in text_of(admin_client)


def test_says_so_when_nobody_looked(admin_client: Client) -> None:
    assert "Nobody looked at it lately" in text_of(admin_client)


def test_says_so_when_there_is_no_gorush(admin_client: Client, settings: LazySettings) -> None:
    settings.GORUSH_URLS = []
    assert "No gorush is configured" in text_of(admin_client)


def test_a_cache_that_is_away_is_like_nobody_having_looked(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_arguments: Any) -> None:
        raise board.RedisError

    monkeypatch.setattr(board.cache, "get_many", away)
    assert "Nobody looked at it lately" in text_of(admin_client)


def test_is_for_people_of_the_console_only(client: Client) -> None:
    assert client.get(PAGE).status_code == 302


def test_cannot_be_changed(admin_client: Client) -> None:
    assert admin_client.post(PAGE).status_code == 405


def test_the_start_page_leads_to_it(admin_client: Client) -> None:
    assert f'href="{PAGE}"' in admin_client.get("/admin/").content.decode()


@pytest.mark.parametrize(("queues", "is_asked"), [(["maintenance", "reports"], True), (["delivery"], False)])
def test_a_worker_that_maintains_looks_when_it_starts(
    monkeypatch: pytest.MonkeyPatch, queues: list[str], is_asked: bool
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(celery.app.amqp.queues, "_consume_from", dict.fromkeys(queues))
    monkeypatch.setattr(celery.app, "send_task", lambda name, **_options: sent.append(name))

    celery.watch_at_start()

    assert sent == (["waku_bridge.tasks.watch_gorush"] if is_asked else [])


def test_the_task_looks_at_every_gorush_of_the_settings(settings: LazySettings) -> None:
    settings.GORUSH_URLS = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]

    tasks.watch_gorush()

    assert [notice.deviations[0].id for notice in board.read(settings.GORUSH_URLS).values()] == ["unreachable"] * 2


def test_beat_knows_the_task(settings: LazySettings) -> None:
    assert settings.CELERY_BEAT_SCHEDULE["watch_gorush"]["task"] == tasks.watch_gorush.name
    assert settings.CELERY_BEAT_SCHEDULE["watch_gorush"]["schedule"] == board.LOOK_EVERY_SECONDS


def test_a_worker_starts_without_the_broker_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_arguments: Any, **_options: Any) -> None:
        raise OperationalError

    monkeypatch.setattr(celery.app, "send_task", away)
    celery.watch_at_start()
