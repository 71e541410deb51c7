"""Gauges from the database and the queues, read when metrics are collected, at most every KEPT_SECONDS.

Each read opens its own connections with short timeouts. While a server hangs, metrics report that and do not hang too.
"""

from collections.abc import Iterator
from contextlib import closing, suppress

import psycopg
import redis
import structlog
from django.conf import settings
from django.db import connection
from django.utils import timezone
from prometheus_client import Metric
from prometheus_client.registry import Collector

from pushserver.celery import QUEUES
from pushserver.console.health.indicators import VALUES
from pushserver.console.health.recent import Recent
from pushserver.console.health.snapshot import take_snapshot
from pushserver.metrics.catalogue import stored_gauges
from pushserver.metrics.names import INDICATOR, QUEUE_TASKS

log = structlog.get_logger(__name__)

TIMEOUT_SECONDS = 2
KEPT_SECONDS = 5.0


class Stock(Collector):
    """The indicators, and the gauges of database and broker, as prometheus_client collects them."""

    def __init__(self) -> None:
        self._recent = Recent(_ask, lambda: KEPT_SECONDS)

    def collect(self) -> list[Metric]:
        return self._recent.get()


def _ask() -> list[Metric]:
    return [_indicators(), *_ask_database(), *_ask_broker()]


def _indicators() -> Metric:
    found = take_snapshot(now=timezone.now()).indicators
    return INDICATOR.family((indicator.id, VALUES.get(indicator.state)) for indicator in found)


def _ask_database() -> Iterator[Metric]:
    """Yield the gauges from the database. The indicator of PostgreSQL has the reason if they are missing."""
    parameters = connection.get_connection_params() | {"connect_timeout": TIMEOUT_SECONDS, "cursor_factory": None}
    # Without a transaction, so that a failed query does not prevent the others.
    with suppress(psycopg.Error), closing(psycopg.connect(**parameters, autocommit=True)) as own:
        own.execute(f"SET statement_timeout = '{TIMEOUT_SECONDS}s'")
        yield from list(_ask_gauges(own))


def _ask_gauges(own: psycopg.Connection) -> Iterator[Metric]:
    """Yield the gauges up to the first that takes too long, because the next ones would take too long as well."""
    for gauge in stored_gauges():
        try:
            yield gauge.family(own.execute(gauge.sql.encode()))
        except psycopg.Error as error:
            log.warning("gauge_missing", gauge=gauge.name, error=type(error).__name__)
            if isinstance(error, psycopg.errors.QueryCanceled):
                return


def _ask_broker() -> Iterator[Metric]:
    options = {"socket_timeout": TIMEOUT_SECONDS, "socket_connect_timeout": TIMEOUT_SECONDS}
    with suppress(redis.RedisError), closing(redis.Redis.from_url(settings.REDIS_URL, **options)) as client:
        yield QUEUE_TASKS.family([(queue, client.llen(queue)) for queue in QUEUES])
