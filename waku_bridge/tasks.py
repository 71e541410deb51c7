"""The wiring of a message's way: each task takes ids, calls one use case, and enqueues what follows from it.

Every task is safe to run twice. A lost queue entry costs time and no message: `sweep` finds the row it was for.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import islice
from typing import TypeVar

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from notifications import delivery
from notifications.connections import lasting_client, once
from notifications.gateways.gorush.client import configured_gateway
from waku_bridge import inbound, inbox, outbound
from waku_bridge.node import WakuNode

ENVELOPE_BATCH_SIZE = 200
SWEEP_LIMIT = 2000
NODE_TIMEOUT_SECONDS = 10.0

T = TypeVar("T")


@shared_task
def process_envelopes(envelope_hashes_hex: list[str]) -> None:
    hashes = [bytes.fromhex(envelope_hash) for envelope_hash in envelope_hashes_hex]
    processed = inbound.process(hashes, now=timezone.now())
    enqueue_replies(processed.reply_ids)
    enqueue_notifications(processed.notification_ids)
    if processed.waiting_request_ids:
        answer_overdue_requests.apply_async((processed.waiting_request_ids,), countdown=settings.REPLY_DEADLINE_SECONDS)


@shared_task
def deliver_notifications(notification_ids: list[int]) -> None:
    lease = timedelta(seconds=settings.DELIVERY_LEASE_SECONDS)
    for request_ids in delivery.deliver(notification_ids, configured_gateway(), lease=lease):
        enqueue_replies(outbound.answer_requests(request_ids, now=timezone.now()))


@shared_task
def answer_overdue_requests(request_ids: list[int]) -> None:
    enqueue_replies(outbound.answer_requests(request_ids, now=timezone.now()))


@shared_task
def publish_replies(reply_ids: list[int]) -> None:
    outbound.publish(reply_ids, _nodes(), now=timezone.now())


@shared_task
def sweep() -> None:
    """Put into the queue again whatever a crash or a lost queue entry left behind, and what has become due."""
    now, patience = timezone.now(), timedelta(seconds=settings.QUEUE_PATIENCE_SECONDS)
    enqueue_envelopes(inbox.hand_out_left_behind(now=now, limit=SWEEP_LIMIT, patience=patience))
    delivery.take_up_lost(now=now)
    enqueue_notifications(delivery.hand_out_due(now=now, limit=SWEEP_LIMIT, patience=patience))
    enqueue_replies(outbound.hand_out_left_behind(now=now, limit=SWEEP_LIMIT, patience=patience))
    overdue = delivery.overdue_request_ids(now=now, limit=SWEEP_LIMIT)
    enqueue_replies(outbound.answer_requests(overdue, now=now))


def enqueue_envelopes(hashes: Sequence[bytes]) -> None:
    for batch in _batched([envelope_hash.hex() for envelope_hash in hashes], ENVELOPE_BATCH_SIZE):
        process_envelopes.delay(batch)


def enqueue_notifications(notification_ids: Sequence[int]) -> None:
    for batch in _batched(notification_ids, delivery.BATCH_SIZE):
        deliver_notifications.delay(batch)


def enqueue_replies(reply_ids: Sequence[int]) -> None:
    for batch in _batched(reply_ids, outbound.BATCH_SIZE):
        publish_replies.delay(batch)


@once
def _nodes() -> list[WakuNode]:
    client = lasting_client(timeout_seconds=NODE_TIMEOUT_SECONDS)
    return [WakuNode(url, client) for url in settings.WAKU_NODES]


def _batched(items: Iterable[T], size: int) -> Iterable[list[T]]:
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch
