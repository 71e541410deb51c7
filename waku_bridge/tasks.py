"""The wiring of a message's way: each task takes ids, calls one use case, and enqueues what follows from it.

Every task is safe to run twice. A lost queue entry costs time and no message: `sweep` finds the row it was for.
"""

import threading
import traceback
from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import structlog
from celery import Task, shared_task
from celery.exceptions import TaskPredicate
from django.conf import settings
from django.db import DatabaseError, InterfaceError, OperationalError
from django.utils import timezone
from kombu.exceptions import OperationalError as QueueError

from notifications import delivery
from notifications import retention as notification_retention
from notifications.connections import lasting_client, once
from notifications.gateways.gorush.client import configured_gateway
from notifications.gateways.gorush.unknown_errors import unknown_errors
from notifications.gateways.gorush.watch.look import look as look_at_gorush
from registrations import retention as registration_retention
from waku_bridge import canary, inbound, inbox, outbound, retention, unkeyed
from waku_bridge.metrics import SWEPT
from waku_bridge.node import WakuNode
from waku_bridge.node.watch.look import look as look_at_nodes
from waku_bridge.outbound import Nodes
from waku_bridge.query_topics import CpuBudget, derive_newest, urgent_budget

ENVELOPE_BATCH_SIZE = 200
SWEEP_LIMIT = 2000
# nwaku's relay answers within 5 seconds, or not at all. Identical bytes given to another node meanwhile do no harm.
NODE_TIMEOUT_SECONDS = 5.0
CONFIRMING = threading.Lock()
PURGE_SECONDS = 2.0
# `derive_topic_keys` comes so often, and may take so much CPU time for keys that envelopes wait for.
KEYS_PERIOD_SECONDS = 2.0
WANTED_KEYS_SECONDS = 0.5

T = TypeVar("T")
log = structlog.get_logger(__name__)


class TaskFailed(Exception):  # noqa: N818 - says what happened
    """Stands for the exception that ended a task, by its type and place."""


class MessageTask(Task):  # type: ignore[type-arg]  # only generic for the type checker
    """Repeats what a restart of the database or a deadlock interrupted. Celery acknowledges a failed task, so without
    this its messages would wait for the sweep.
    """

    autoretry_for = (OperationalError, InterfaceError)
    retry_backoff = 1
    retry_backoff_max = 8
    max_retries = 5

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except TaskPredicate:
            raise
        except Exception as error:  # noqa: BLE001 - any
            # Celery logs the text of what it gets, and the database's errors quote the values they are about.
            raise TaskFailed(_describe(error)) from None


def _describe(error: Exception) -> str:
    places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
    return f"{type(error).__name__} at {' > '.join(places)}"


@shared_task(base=MessageTask)
def process_envelopes(envelope_hashes_hex: list[str]) -> None:
    hashes = [bytes.fromhex(envelope_hash) for envelope_hash in envelope_hashes_hex]
    processed = inbound.process(hashes, now=timezone.now())
    enqueue_replies(processed.reply_ids)
    enqueue_notifications(processed.notification_ids)
    if processed.waiting_request_ids:
        answer_overdue_requests.apply_async((processed.waiting_request_ids,), countdown=settings.REPLY_DEADLINE_SECONDS)
    if processed.needs_keys:
        _call_back_unkeyed(urgent_budget())


def _call_back_unkeyed(budget: CpuBudget) -> None:
    enqueue_envelopes(unkeyed.call_back(budget=budget, now=timezone.now(), limit=SWEEP_LIMIT))


@shared_task(base=MessageTask, autoretry_for=())  # the next one comes in a moment
def derive_topic_keys() -> None:
    """Those that envelopes wait for first, then those that somebody may need later."""
    _call_back_unkeyed(CpuBudget(0, WANTED_KEYS_SECONDS))
    derive_newest(budget=CpuBudget(0, settings.TOPIC_KEY_CPU_SHARE * KEYS_PERIOD_SECONDS))


@shared_task(base=MessageTask)
def deliver_notifications(notification_ids: list[int]) -> None:
    lease = timedelta(seconds=settings.DELIVERY_LEASE_SECONDS)
    patience = timedelta(seconds=settings.DELIVERY_PATIENCE_SECONDS)
    gateway = configured_gateway()
    for request_ids in delivery.deliver(notification_ids, gateway, lease=lease, patience=patience, when_late=_answer):
        _answer(request_ids)
    unknown_errors().record(now=timezone.now())


def _answer(request_ids: Iterable[int]) -> None:
    """The sweep answers what cannot be answered now."""
    try:
        enqueue_replies(outbound.answer_requests(request_ids, now=timezone.now()))
    except (DatabaseError, InterfaceError, QueueError) as error:
        log.warning("answers_postponed", error=type(error).__name__)


@shared_task(base=MessageTask)
def answer_overdue_requests(request_ids: list[int]) -> None:
    enqueue_replies(outbound.answer_requests(request_ids, now=timezone.now()))


@shared_task(base=MessageTask)
def publish_replies(reply_ids: list[int]) -> None:
    outbound.publish(reply_ids, _nodes(), now=timezone.now())


@shared_task(base=MessageTask, autoretry_for=())  # the next one comes in a moment
def confirm_replies() -> None:
    """One at a time in this process: a store that hangs must not take the threads that publish."""
    if CONFIRMING.acquire(blocking=False):
        try:
            enqueue_replies(outbound.confirm(_stores(), now=timezone.now()))
        finally:
            CONFIRMING.release()


@shared_task(base=MessageTask, autoretry_for=())  # the next one comes in a moment
def sweep() -> None:
    """Put into the queue again whatever a crash or a lost queue entry left behind, and what has become due."""
    now, patience = timezone.now(), timedelta(seconds=settings.QUEUE_PATIENCE_SECONDS)
    enqueue_envelopes(_swept("envelopes", inbox.hand_out_left_behind(now=now, limit=SWEEP_LIMIT, patience=patience)))
    SWEPT.labels("lost_pushes").inc(delivery.take_up_lost(now=now))
    due = delivery.hand_out_due(now=now, limit=SWEEP_LIMIT, patience=patience)
    enqueue_notifications(_swept("notifications", due))
    left_behind = outbound.hand_out_left_behind(now=now, limit=SWEEP_LIMIT, patience=patience)
    enqueue_replies(_swept("replies", left_behind))
    overdue = _swept("overdue_requests", delivery.overdue_request_ids(now=now, limit=SWEEP_LIMIT))
    enqueue_replies(outbound.answer_requests(overdue, now=now))


def _swept(kind: str, found: Sequence[T]) -> Sequence[T]:
    SWEPT.labels(kind).inc(len(found))
    return found


def enqueue_envelopes(hashes: Sequence[bytes]) -> None:
    for batch in _batched([envelope_hash.hex() for envelope_hash in hashes], ENVELOPE_BATCH_SIZE):
        process_envelopes.delay(batch)


def enqueue_notifications(notification_ids: Sequence[int]) -> None:
    for batch in delivery.split_by_lane(notification_ids):
        deliver_notifications.delay(batch)


def enqueue_replies(reply_ids: Sequence[int]) -> None:
    for batch in _batched(reply_ids, outbound.BATCH_SIZE):
        publish_replies.delay(batch)


@once
def _nodes() -> Nodes:
    client = lasting_client(timeout_seconds=NODE_TIMEOUT_SECONDS)
    return Nodes(WakuNode(url, client) for url in settings.WAKU_NODES)


@once
def _stores() -> Nodes:
    """Not the same as those: a node that publishes well may have a store that hangs."""
    client = lasting_client(timeout_seconds=NODE_TIMEOUT_SECONDS)
    return Nodes(WakuNode(url, client) for url in settings.WAKU_STORE_NODES)


def _batched(items: Iterable[T], size: int) -> Iterable[list[T]]:
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch


@shared_task(base=MessageTask, autoretry_for=())  # the next one comes in a moment
def watch_gorush() -> None:
    look_at_gorush(settings.GORUSH_URLS, now=timezone.now())


@shared_task(base=MessageTask, autoretry_for=())  # the next one comes in a moment
def watch_nodes() -> None:
    look_at_nodes(now=timezone.now())


@shared_task(base=MessageTask, autoretry_for=())  # the next one comes in a moment
def run_canary() -> None:
    """On a queue of its own: it waits for the other workers, so it must not take the place of one."""
    if settings.WAKU_NODES:
        canary.run()


@shared_task(base=MessageTask, autoretry_for=())  # the next one comes in a moment
def purge() -> None:
    """Remove what is older than the settings promise. The rest of a large heap waits for the next run: on a small
    machine the sweep, which answers late requests, shares its process with this.
    """
    now = timezone.now()
    removed = {
        "envelopes": run_for_a_while(retention.purge(now=now, keep=_days(settings.ENVELOPE_RETENTION_DAYS))),
        "requests": run_for_a_while(
            notification_retention.purge(now=now, keep=_days(settings.NOTIFICATION_RETENTION_DAYS))
        ),
        "canary_runs": run_for_a_while(canary.purge(now=now, keep=_days(settings.CANARY_RETENTION_DAYS))),
        "events": run_for_a_while(registration_retention.purge(now=now, keep=_days(settings.EVENT_RETENTION_DAYS))),
    }
    if any(removed.values()):
        log.info("purged", **removed)


def run_for_a_while(steps: Iterable[int]) -> int:
    """Of the rest, the next run takes care. Returns how many rows were removed."""
    deadline, removed = monotonic() + PURGE_SECONDS, 0
    for rows in steps:
        removed += rows
        if monotonic() > deadline:
            break
    return removed


def _days(number: int) -> timedelta:
    return timedelta(days=number)
