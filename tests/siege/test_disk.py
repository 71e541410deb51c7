"""Bytes that a day of attacks leaves on the disk for each byte that was sent, beside a phone that gets its pushes.

The messages go into the inbox, and a worker processes them. Time is an argument: each hour of the day brings a burst.
PostgreSQL's autovacuum is replaced by a vacuum after each hour.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from coincurve import PrivateKey
from django.db import connection
from django.utils import timezone

from notifications import retention
from notifications.messages import Outcome
from notifications.models import Notification
from tests.batches import Process
from tests.conversation import OUTSIDER, SENDER, push, put, registration, request
from tests.delivering import RecordingGateway
from waku_bridge.codec.keys import Identity
from waku_bridge.messages import WakuMessage
from waku_bridge.removal import retention as removal

pytestmark = [pytest.mark.chaos, pytest.mark.django_db(transaction=True)]
HOURS = 24
HOUR = timedelta(hours=1)
KEPT_PER_BYTE = 3
BATCH = 200
# The timestamp of a message beside its payload and topic. Everything else that a node forwards is left out.
TIMESTAMP_BYTES = 8
VACUUM = "VACUUM waku_bridge_inboundenvelope, waku_bridge_envelopehash, waku_bridge_outboundreply"
SIZE = """
    SELECT sum(pg_total_relation_size(oid)) FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
"""


def ns_of(at: datetime) -> int:
    return round(at.timestamp()) * 10**9


def garbage(at: datetime) -> Iterator[WakuMessage]:
    """Yield the smallest messages that cost the server a look: one byte, on its own topic."""
    message = replace(registration(), payload=b"\x01")
    return (replace(message, timestamp_ns=ns_of(at) + number) for number in range(3000))


def requests_to_nobody(at: datetime) -> Iterator[WakuMessage]:
    """Yield the smallest requests that are answered."""
    for number in range(250):
        signer = Identity(PrivateKey((ns_of(at) + number).to_bytes(32)))
        nobody = push(OUTSIDER, public_key_hash=b"n", installation_id="", access_token="")
        yield request(nobody, signer=signer, message_id=b"m", timestamp_ns=ns_of(at) + number)


def recordings(at: datetime) -> Iterator[WakuMessage]:
    """Yield one request, each time in a new envelope."""
    return (request(push(OUTSIDER), signer=OUTSIDER, timestamp_ns=ns_of(at) + number) for number in range(250))


def process_all(process: Process, messages: list[WakuMessage], *, now: datetime) -> None:
    for start in range(0, len(messages), BATCH):
        put(*messages[start : start + BATCH], now=now)
        process.process_batch(now=now)
    process.process_backlog(now=now)


def size_bytes(*first: str) -> int:
    with connection.cursor() as cursor:
        for sql in first:
            cursor.execute(sql)
        cursor.execute(SIZE)
        return int(cursor.fetchone()[0])


def purge(now: datetime) -> None:
    for removed in (
        retention.purge(now=now, keep=timedelta(days=30)),
        retention.purge_digests(now=now, keep=timedelta(days=90)),
        removal.purge(now=now, keep=timedelta(days=3)),
    ):
        list(removed)


@pytest.mark.parametrize("attack", [garbage, requests_to_nobody, recordings])
def test_a_day_of_an_attack_leaves_three_bytes_for_each_of_its_own(
    attack: Callable[[datetime], Iterator[WakuMessage]],
) -> None:
    process = Process(RecordingGateway(Outcome.DELIVERED), limit=BATCH)
    midnight = timezone.now().astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    purge(midnight)
    process_all(process, [registration()], now=midnight)
    # Rows that an earlier test deleted leave space in the files, which must not hide what this one leaves.
    before, sent, began = size_bytes("VACUUM FULL"), 0, time.monotonic()
    for hour in range(HOURS):
        now = midnight + hour * HOUR
        messages = list(attack(now))
        sent += sum(len(each.payload) + len(each.content_topic) + TIMESTAMP_BYTES for each in messages)
        wanted = request(push(), signer=SENDER, message_id=b"%d" % hour, timestamp_ns=ns_of(now))
        process_all(process, [*messages, wanted], now=now)
        size_bytes(VACUUM)
    process_all(process, [], now=midnight + HOURS * HOUR)
    purge(midnight + HOURS * HOUR)
    kept, seconds = size_bytes(VACUUM) - before, time.monotonic() - began
    delivered = Notification.objects.filter(state="delivered").count()
    print(
        f"\n{attack.__name__}: {kept / sent:.2f} bytes kept for each of {sent:,} bytes, in {seconds:.0f} s; "
        f"honest: {delivered} of {HOURS} delivered"
    )
    assert kept <= KEPT_PER_BYTE * sent
    assert delivered == HOURS
