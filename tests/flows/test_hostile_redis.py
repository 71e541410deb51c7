"""Redis with hostile contents: a writer can make no process execute code, and stops no page."""

import pickle
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from django.conf import LazySettings
from django.core.cache import cache
from django.test import Client
from kombu import Queue
from kombu.exceptions import ContentDisallowed
from redis import Redis

from pushserver.celery import app
from spark_reports.nights.status import SAVED
from xmpp_bridge.component import END

PAGES = ("/readyz", "/admin/", "/admin/nodes/", "/admin/gorush/", "/metrics")
READS = {"GET", "MGET"}
KINDS = 5  # kinds of facts in the status cache that these pages read


class Bomb:
    """Object that makes a file wherever it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return open, (str(self.file), "w")


@pytest.fixture
def redis(settings: LazySettings) -> Any:
    with Redis.from_url(settings.REDIS_URL) as client:
        yield client


@pytest.fixture
def bomb(tmp_path: Path) -> Bomb:
    bomb = Bomb(tmp_path / "executed")
    pickle.loads(pickle.dumps(bomb)).close()  # noqa: S301 - it goes off
    bomb.file.unlink()
    return bomb


def keys_read(redis: Redis, read: Callable[[], object]) -> set[str]:
    """Return the keys whose values any connection reads during a call of ``read``."""
    commands: list[list[str]] = []
    with redis.monitor() as monitor:  # type: ignore[no-untyped-call]
        read()
        redis.echo("that was it")
        while not (commands and commands[-1][0] == "ECHO"):
            commands.append(monitor.next_command()["command"].split(" "))
    return {key for name, *keys in commands if name.upper() in READS for key in keys}


@pytest.mark.django_db
def test_no_pickle_is_read_from_redis_and_nothing_else_there_stops_a_page(
    admin_client: Client, settings: LazySettings, redis: Redis, bomb: Bomb
) -> None:
    settings.XMPP_COMPONENT_JID = "push.example.org"
    settings.WAKU_NODES = settings.WAKU_STORE_NODES = settings.GORUSH_URLS = ["http://127.0.0.1:1"]

    def look() -> list[int]:
        return [admin_client.get(page).status_code for page in PAGES]

    looks: list[list[int]] = []
    keys = keys_read(redis, lambda: looks.append(look()))
    assert {cache.make_key(saved.key()) for saved in (SAVED, END)} <= keys
    assert len({key.split(":")[3] for key in keys if ":status:" in key}) >= KINDS
    assert any(":worker:" in key for key in keys)
    for value in (pickle.dumps(bomb), b"[[1]]", b'{"state": []}', b'"a word"', b"{" * 100_000):
        redis.mset(dict.fromkeys(keys, value))
        assert [look()] == looks
    assert not bomb.file.exists()
    redis.delete(*keys)


def test_no_pickled_task_is_opened(redis: Redis, bomb: Bomb) -> None:
    queue = Queue("bombs")
    refused: list[Exception] = []
    with app.connection_for_write() as connection, connection.channel() as channel:
        app.amqp.Producer(channel).publish(bomb, serializer="pickle", routing_key="bombs", declare=[queue])
        [message] = redis.lrange("bombs", 0, 0)
        assert pickle.dumps(bomb) in b64decode(orjson.loads(message)["body"])
        consumer = app.amqp.TaskConsumer(
            channel,
            queues=[queue],
            callbacks=[lambda *_: None],
            on_decode_error=lambda _, error: refused.append(error),
        )
        with consumer:
            connection.drain_events(timeout=10)
        queue(channel).delete()
    assert [type(error) for error in refused] == [ContentDisallowed]
    assert not bomb.file.exists()
