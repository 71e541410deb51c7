"""Tests of pushes that a bridge passes on by route: they are stored, sent by the workers, and never settled."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from kit.db.base import fetch
from kit.db.reasons import sqlstate
from notifications.acceptance import storing
from notifications.acceptance.statements import NEW_IDS
from notifications.messages import AppKey, Content, Grade, Outcome
from notifications.models import Notification, NotificationRequest, OpenNotification
from notifications.queues.claim import Claim
from notifications.reports import Request
from registrations.models import Route
from tests.rig.delivering import DeliveryProcess, RecordingGateway
from tests.rig.rows import make_notification, make_request, make_route
from tests.rig.statements import statements

pytestmark = pytest.mark.django_db
WAKE = Content("New message", "default", {"k": "wake"}).encode()
MESSAGE = Content("New message", "default", {"e": "AAAA"}).encode()


def pushed(route: Route | None = None, *, key: bytes = b"k" * 32, **fields: Any) -> Claim:
    route = route or make_route()
    now = timezone.now()
    defaults: dict[str, Any] = {
        "notification_id": 0,
        "attempt_number": 1,
        "app": AppKey(route.token_type, route.app_topic),
        "route_id": route.pk,
        "route_generation": route.generation,
        "grade": Grade.NORMAL.value,
        "wake": WAKE,
        "message": MESSAGE,
        "created_at": now,
        "due_at": now,
        "unsent_since": now,
        "expires_at": now + timedelta(hours=1),
        "installation_id": "device",
        "dedup_key": key,
    }
    return Claim(**defaults | fields)


def store(*pushes: Claim) -> None:
    storing.store_pushes("test-bridge", [(push, b"capulet.test") for push in pushes], now=timezone.now())


def store_as(pushes: Sequence[Claim], request_keys: Sequence[bytes]) -> None:
    """Store pushes, each in a request with a key that may be repeated."""
    now = timezone.now()
    wanted = {"requests": len(pushes), "notifications": len(pushes), "attempts": 0}
    [(request_ids, ids, _)] = fetch(NEW_IDS, wanted)
    requests = [
        Request(pk, "test-bridge", key, b"", b"", now, now, b"", request_key=key, sender_digest=b"s" * 16)
        for pk, key in zip(request_ids, request_keys, strict=True)
    ]
    new = [
        replace(push, notification_id=pk, request_id=request.id)
        for push, pk, request in zip(pushes, ids, requests, strict=True)
    ]
    storing.store(requests, new, now=now)


def test_a_push_is_delivered_with_its_content_and_its_grade() -> None:
    store(pushed(grade=Grade.VOIP.value, collapse_id=b"8 bytes!".hex()))
    deliverer = DeliveryProcess()
    deliverer.process_backlog()
    [push] = deliverer.gateway.pushes
    assert (push.grade, push.message, push.wake) == ("voip", MESSAGE, WAKE)
    assert (push.collapse_id, push.is_payload_dropped) == (b"8 bytes!".hex(), False)
    notification = Notification.objects.get()
    assert push.expires_at == notification.expires_at
    assert (notification.state, notification.message, notification.wake) == ("delivered", None, None)


@pytest.mark.requirement("XB14", "X14")
def test_the_request_of_a_push_is_stored_as_answered_and_never_settled() -> None:
    store(pushed())
    request = NotificationRequest.objects.get()
    assert (request.state, request.bridge, request.reply_address) == ("answered", "test-bridge", None)
    assert Notification.objects.get().report == "success"
    assert DeliveryProcess(RecordingGateway(Outcome.DEAD)).process_batch() in {True, False}


def test_a_push_without_a_collapse_id_replaces_no_other() -> None:
    """So does a push that reuses a released key: the push on the screen is another message."""
    store(pushed(key=b"a" * 32), pushed(key=b"b" * 32))
    OpenNotification.objects.update(dedup_key=None)
    store(pushed(key=b"a" * 32))
    assert [len(each or b"") for each in {bytes(n.collapse_id or b"") for n in Notification.objects.all()}] == [16] * 3


def test_a_payload_that_is_refused_is_left_out_once() -> None:
    """A push without a payload is only tried once more."""
    store(pushed(grade=Grade.VOIP.value), pushed(key=b"l" * 32, message=b""))
    deliverer = DeliveryProcess(RecordingGateway(Outcome.PAYLOAD))
    deliverer.process_backlog()
    deliverer.process_backlog()  # they are due at once
    deliverer.process_backlog()
    sent = [(bool(push.message), push.is_payload_dropped, push.wake) for push in deliverer.gateway.pushes]
    assert sorted(sent) == [(False, False, WAKE), (False, True, WAKE), (False, True, WAKE), (True, False, WAKE)]
    assert {each.state for each in Notification.objects.all()} == {"undeliverable"}
    assert {each.state for each in Route.objects.all()} == {"active"}


@pytest.mark.parametrize(
    ("minutes", "answered", "is_repeated"),
    [
        (1, (2, 3), True),  # stored before this connection: its answer may be lost
        (11, (2, 11), False),
        (1, (-1, 1), False),  # stored and answered on this connection
        (1, (-1, 0), True),  # it is in hand, and stored once more
    ],
)
def test_a_key_is_repeated_until_its_sender_has_the_answer_and_for_ten_minutes_at_most(
    minutes: int, answered: tuple[int, int], is_repeated: bool
) -> None:
    store(pushed())
    stored_at = Notification.objects.get().created_at
    since, until = (stored_at + timedelta(minutes=at) for at in answered)
    now, keys = stored_at + timedelta(minutes=minutes), {b"k" * 32, b"x" * 32}
    found = storing.find_repeated("test-bridge", keys, (since, until), now=now)
    assert found == ({b"k" * 32} if is_repeated else set())
    if not is_repeated:
        store(pushed())
        assert NotificationRequest.objects.count() == 2


def test_a_key_that_another_worker_has_stored_anew_is_not_released() -> None:
    """The process read it as the key of a notification that reached nobody. The other worker released it meanwhile."""
    now = timezone.now()
    anew = make_notification(dedup_key=b"k" * 32, at=now)
    old = {b"k" * 32: now - timedelta(days=9999)}
    assert storing.release_old(old, until=now - timedelta(days=1), now=now) == set(old)
    anew.refresh_from_db()
    assert bytes(anew.dedup_key or b"") == b"k" * 32


def test_no_payload_is_in_a_repr() -> None:
    assert "AAAA" not in repr(pushed())
    assert "AAAA" not in repr(Content("t", "s", {"e": "AAAA"}))


def test_new_ids_come_from_the_sequences_of_django_in_one_statement() -> None:
    before = make_request().pk
    with statements() as sent:
        [(requests, notifications, attempts)] = fetch(NEW_IDS, {"requests": 3, "notifications": 1000, "attempts": 0})
    assert (len(set(notifications)), attempts, len(sent)) == (1000, [], 1)
    assert before < requests[0] < requests[1] < requests[2] < make_request().pk


@pytest.mark.django_db(transaction=True)
def test_two_workers_that_store_the_same_rows_in_another_order_wait_and_do_not_dead_lock() -> None:
    """Both have begun their transactions before either inserts."""
    route = make_route()
    begun = threading.Barrier(2, timeout=20)

    def store_all(order: int, first: int) -> str:
        pushes = [pushed(route, key=number.to_bytes(32)) for number in range(first, first + 50)]
        try:
            with transaction.atomic():
                connection.cursor().execute("SELECT")
                begun.wait()
                store_as(pushes[::order], [push.dedup_key for push in pushes][::order])
        except DatabaseError as error:
            return sqlstate(error)
        finally:
            connection.close()
        return ""

    with ThreadPoolExecutor(2) as pool:
        for first in range(0, 500, 50):
            assert sorted(pool.map(store_all, (1, -1), (first, first))) == ["", "23505"]
