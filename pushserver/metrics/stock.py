"""Ask the database and the queues for gauges when metrics are collected, at most every few seconds.

The connections are opened for this only and give up soon: while a server hangs, metrics must report it and not hang as
well.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from threading import Lock
from time import monotonic

import psycopg
import redis
import structlog
from django.conf import settings
from django.core.cache import cache
from django.db import connection
from prometheus_client import Metric
from prometheus_client.registry import Collector

from pushserver.celery import HEARTBEAT_KEY, QUEUES
from pushserver.metrics.catalogue import stored_gauges
from pushserver.metrics.names import BROKER_UP, DATABASE_UP, QUEUE_HAS_WORKER, QUEUE_TASKS

log = structlog.get_logger(__name__)

TIMEOUT_SECONDS = 2
KEPT_SECONDS = 5.0


class Stock(Collector):
    """The gauges of database and broker, as prometheus_client collects them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: list[Metric] = []
        self._asked_at = float("-inf")

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> list[Metric]:
        with self._lock:
            if monotonic() - self._asked_at >= KEPT_SECONDS:
                self._known = [*_ask_database(), *_ask_broker()]
                self._asked_at = monotonic()
            return self._known


def _ask_database() -> Iterator[Metric]:
    parameters = connection.get_connection_params() | {"connect_timeout": TIMEOUT_SECONDS, "cursor_factory": None}
    try:
        # Each query is asked by itself, so that one that fails does not prevent the others.
        with closing(psycopg.connect(**parameters, autocommit=True)) as own:
            own.execute(f"SET statement_timeout = '{TIMEOUT_SECONDS}s'")
            answers = list(_ask_gauges(own))
    except psycopg.Error:
        answers, is_up = [], 0
    else:
        is_up = 1
    yield DATABASE_UP.family([(is_up,)])
    yield from answers


def _ask_gauges(own: psycopg.Connection) -> Iterator[Metric]:
    """Yield the gauges that the database can tell, up to the first that takes too long, as the next ones would, too."""
    for gauge in stored_gauges():
        try:
            yield gauge.family(own.execute(gauge.sql.encode()))
        except psycopg.Error as error:
            log.warning("gauge_missing", gauge=gauge.name, error=type(error).__name__)
            if isinstance(error, psycopg.errors.QueryCanceled):
                return


def _ask_broker() -> Iterator[Metric]:
    options = {"socket_timeout": TIMEOUT_SECONDS, "socket_connect_timeout": TIMEOUT_SECONDS}
    try:
        with closing(redis.Redis.from_url(settings.REDIS_URL, **options)) as client:
            lengths = [client.llen(queue) for queue in QUEUES]
        beats = cache.get_many([HEARTBEAT_KEY.format(queue=queue) for queue in QUEUES])
    except redis.RedisError:
        yield BROKER_UP.family([(0,)])
        return
    yield BROKER_UP.family([(1,)])
    yield QUEUE_TASKS.family(zip(QUEUES, lengths, strict=True))
    yield QUEUE_HAS_WORKER.family((queue, int(HEARTBEAT_KEY.format(queue=queue) in beats)) for queue in QUEUES)
