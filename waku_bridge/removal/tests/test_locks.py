"""Locks of a removal: it waits for sessions that write about its client, and holds no lock that they need."""

from concurrent.futures import ThreadPoolExecutor
from time import monotonic, sleep

import pytest
from django.db import connection, transaction
from django.utils import timezone

from notifications.models import Attempt, Notification, NotificationRequest
from registrations.models import Registration, Route
from tests.rig import rows
from waku_bridge.canary.traces import mark, remove_traces
from waku_bridge.codec import topics
from waku_bridge.identity import canary_identity
from waku_bridge.models import InboundEnvelope
from waku_bridge.removal.erasure import forget

pytestmark = pytest.mark.django_db(transaction=True)
TIMEOUT_SECONDS = 20
WAITING_FOR_US = """
    SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid)))
"""
# The rows of one client that other code locks, in this order.
OTHERS = {
    "processing": (InboundEnvelope, Registration, Route, Notification),
    "recording": (Attempt, Route, Notification),
    "answering": (NotificationRequest, Notification),
}


def make_client():
    """Make one row of every kind about the canary, which can be erased like any user."""
    key_hash = canary_identity().key_hash
    rows.make_story(public_key_hash=key_hash)
    InboundEnvelope.objects.all().delete()
    query = rows.make_envelope(content_topic=topics.content_topic(topics.query_name(key_hash)))
    mark(query.hash, now=timezone.now())


def forget_canary():
    forget(canary_identity().key_hash, now=timezone.now())


def remove_canary():
    remove_traces(now=timezone.now())


@pytest.mark.parametrize("remove", [forget_canary, remove_canary])
@pytest.mark.parametrize("models", OTHERS.values(), ids=OTHERS)
def test_a_removal_holds_no_lock_that_the_sessions_need_for_which_it_waits(remove, models):
    make_client()
    first, *others = models
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            first.objects.select_for_update().get()
            removal = pool.submit(on_own_connection, remove)
            wait_until_somebody_waits_for_us()
            for model in others:
                model.objects.select_for_update(nowait=True).get()
        removal.result(TIMEOUT_SECONDS)
    assert not Registration.objects.exists()


def on_own_connection(work):
    try:
        work()
    finally:
        connection.close()


def wait_until_somebody_waits_for_us():
    deadline = monotonic() + TIMEOUT_SECONDS
    while monotonic() < deadline:
        with connection.cursor() as cursor:
            cursor.execute(WAITING_FOR_US)
            [(is_waiting,)] = cursor.fetchall()
        if is_waiting:
            return
        sleep(0.02)
    pytest.fail("nobody waits for us")
