"""Cost of bytes that anybody may send, beside honest traffic: phones of a made-up app (4), large registrations (5), and
what a day of attacks leaves on the disk (6).

Everything is real but the nodes and gorush. Days pass on an injected clock.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from coincurve import PrivateKey
from django.db import connection
from django.utils import timezone

from notifications import retention
from notifications.messages import Outcome
from notifications.models import Notification, NotificationRequest
from registrations.models import Registration
from tests.flows.test_half_working import ANDROID, IOS, Gorush, Phone, World, open_world
from tests.rig.conversation import OUTSIDER, PUBSUB_TOPIC, SENDER, push, put, registration
from tests.rig.conversation import request as push_request
from tests.rig.delivering import Process, RecordingGateway
from tests.rig.rows import firebase_token
from tests.rig.statements import other_session
from waku_bridge import tasks
from waku_bridge.codec.keys import Identity
from waku_bridge.codec.wire import message_hash
from waku_bridge.inbox.inbox import INSERT, Path, insert_values
from waku_bridge.messages import Envelope, WakuMessage

pytestmark = [pytest.mark.chaos, pytest.mark.django_db(transaction=True)]
MADE_UP = "made.up"  # an app topic
PHONES = 100
LARGE, ENTRIES_OF_LARGE = 60, 1690
SECONDS, RATE, BURST_AT = 12, 10, 3
HOURS = 24
HOUR = timedelta(hours=1)
KEPT_PER_BYTE = 3
BATCH = 200
# The timestamp of a message beside its payload and topic. Everything else that a node forwards is left out.
TIMESTAMP_BYTES = 8
TABLES = "openenvelope", "endedenvelope", "envelopehash", "openreply", "endedreply"
VACUUM = f"VACUUM {', '.join(f'waku_bridge_{name}' for name in TABLES)}"
SIZE = """
    SELECT sum(pg_total_relation_size(oid)) FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
"""
numbers = count(1_000_000)


class SlowGorush(Gorush):
    """gorush that answers as fast as Apple and Google do."""

    seconds = 0.1


def test_phones_of_a_made_up_app_cost_eight_attempts_each() -> None:
    with open_world(Gorush) as world:
        outsiders = [Phone(IOS, topic=MADE_UP) for _ in range(PHONES)]
        world.register(*outsiders)
        world.gorush.words[MADE_UP] = "TopicDisallowed"
        put(push_request(*(push(phone.identity) for phone in outsiders)), now=world.now)
        honest = world.phones[IOS]
        world.pass_time(until=world.now + timedelta(days=1), delivering_to=honest, minutes=30)
        posts, arrived = Counter(world.gorush.refused).total(), sum(world.sent_to(*honest))
    print(f"\n4: {PHONES} phones of a made-up app: {posts} POSTs in a day; honest pushes: {arrived} of 48 arrived")
    assert posts <= 8 * PHONES
    assert arrived == 48


def test_large_registrations_delay_no_other_reply() -> None:
    with open_world(SlowGorush) as world:
        _latencies(world, [])
        quiet = _latencies(world, [])
        large = [_large_registration() for _ in range(LARGE)]
        attacked = _latencies(world, large)
        accepted = Registration.objects.filter(allowed_key_list__len=ENTRIES_OF_LARGE).count()
    before, now = _p99(quiet), _p99(attacked)
    size_kb = len(large[0].payload) // 1000
    print(
        f"\n5: {LARGE} registrations of {size_kb} kB ({accepted} accepted in {SECONDS} s): "
        f"p99 of the others {now * 1000:.0f} ms, without them {before * 1000:.0f} ms"
    )
    assert now <= 1.5 * before


def _large_registration() -> WakuMessage:
    identity = Identity(PrivateKey(next(numbers).to_bytes(32)))
    keys = tuple(os.urandom(64) for _ in range(ENTRIES_OF_LARGE))
    return registration(identity, device_token=firebase_token(), allowed_key_list=keys)


def _store(messages: Sequence[WakuMessage]) -> None:
    """Store messages as a bridge does, on a connection of its own, which sends their bytes as they are."""
    envelopes = [Envelope(message_hash(PUBSUB_TOPIC, message), PUBSUB_TOPIC, message) for message in messages]
    with other_session() as session:
        session.execute(INSERT, insert_values(envelopes, source="test", path=Path.LIVE, received_at=timezone.now()))


def _latencies(world: World, burst: Sequence[WakuMessage]) -> list[float]:
    """Send honest requests at a steady rate, and the burst at once, and return how long each answer took."""
    phones = world.phones[IOS] + world.phones[ANDROID]
    ids = [b"%d" % next(numbers) for _ in range(SECONDS * RATE)]
    requests = [
        push_request(push(phones[number % len(phones)].identity), signer=world.senders[number % 4], message_id=each)
        for number, each in enumerate(ids)
    ]
    bridge = ThreadPoolExecutor(1)
    began, sent, answered = time.monotonic(), dict[bytes, float](), dict[bytes, float]()
    while len(answered) < len(ids):
        passed = time.monotonic() - began
        due = ids[len(sent) : int(passed * RATE) + 1]
        first = len(sent)
        sent |= {each: began + (first + index) / RATE for index, each in enumerate(due)}
        hostile, burst = (burst, []) if burst and passed > BURST_AT else ([], burst)
        put(*requests[first : first + len(due)])
        if hostile:
            bridge.submit(_store, hostile)
        if not world.process.process_batch(now=timezone.now()):
            world.process.wait(0.01)
        waiting = sent.keys() - answered.keys()
        done = NotificationRequest.objects.filter(message_id__in=waiting, state=NotificationRequest.State.ANSWERED)
        answered |= {bytes(each): time.monotonic() - sent[bytes(each)] for (each,) in done.values_list("message_id")}
    bridge.shutdown()
    return list(answered.values())


def _p99(latencies: Sequence[float]) -> float:
    return sorted(latencies)[round(0.99 * len(latencies)) - 1]


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
        yield push_request(nobody, signer=signer, message_id=b"m", timestamp_ns=ns_of(at) + number)


def recordings(at: datetime) -> Iterator[WakuMessage]:
    """Yield one request, each time in a new envelope."""
    return (push_request(push(OUTSIDER), signer=OUTSIDER, timestamp_ns=ns_of(at) + number) for number in range(250))


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
        tasks.remove_old(now=now, keep=timedelta(days=3)),
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
        wanted = push_request(push(), signer=SENDER, message_id=b"%d" % hour, timestamp_ns=ns_of(now))
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
