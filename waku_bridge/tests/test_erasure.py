"""Privacy: an erased user is removed from every table, under locks that stop nobody."""

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from notifications.acceptance.storing import digest_of
from notifications.models import (
    Attempt,
    DecidedAtOnce,
    EndedAttempt,
    Notification,
    NotificationRequest,
    OpenNotification,
    OpenRequest,
    RequestDigest,
)
from pushserver.console.canary.waku import mark, remove_traces
from pushserver.console.waku.erasure import find_traces, forget
from registrations.encryption import Purpose, keyring
from registrations.models import Grant, Registration, RegistrationEvent, Route, TopicKey
from tests.rig import rows
from tests.rig.rows import firebase_token
from tests.rig.statements import beside
from waku_bridge.codec import wire
from waku_bridge.models import DeadLetter, InboundEnvelope, OpenEnvelope, OutboundReply
from waku_bridge.query_topics import canary_identity
from waku_bridge.tests.test_query_topics import Listening

pytestmark = pytest.mark.django_db
KEY_HASH = b"\x07" * 64
DEVICE_TOKEN = firebase_token("a-device-token-of-somebody-to-be-forgotten")
ACCESS_TOKEN = "3f1b6c1e-6f1f-4b8e-9f55-0d6c2e1a7b11"
INSTALLATION = "9d1c0f7e-8a24-4c0b-a3a5-6f0f54c7e001"


def make_user(key_hash=KEY_HASH, **fields):
    """Make a user with one row of every kind."""
    story = rows.make_story(public_key_hash=key_hash, **fields)
    OpenNotification.objects.filter(pk=story.notification.pk).update(chat_id=b"chat" * 16, message=b"message" * 16)
    name, at = wire.query_name(key_hash), timezone.now()
    TopicKey.objects.filter(name=key_hash.hex()).update(name=name, topic=int.from_bytes(wire.topic(name)))
    recipient = key_hash[: DecidedAtOnce.RECIPIENT_BYTES]
    rows.make(DecidedAtOnce, recipient=recipient, request=story.request, position=1, at=at)
    asked = rows.make_envelope(content_topic=wire.content_topic(name), state="pending_key")
    rows.make_reply(envelope_hash=asked.hash)
    rows.make_dead_letter(content_topic=wire.content_topic(name))
    return story.registration


def everything() -> str:
    """Return every row of every table, as text."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = current_schema()")
        tables = [name for (name,) in cursor.fetchall()]
        rows = []
        for table in tables:
            cursor.execute(f"SELECT row_to_json({table})::text FROM {table}")
            rows += [f"{table}: {row}" for (row,) in cursor.fetchall()]
    return "\n".join(rows)


def test_no_table_has_a_row_that_identifies_an_erased_user():
    registration = make_user(installation_id=INSTALLATION, device_token=DEVICE_TOKEN, access_token=ACCESS_TOKEN)
    request = NotificationRequest.objects.get()
    name = wire.query_name(KEY_HASH)
    marks = {
        "key hash": KEY_HASH.hex(),
        "installation": INSTALLATION,
        "device token": keyring().digest(Purpose.ADDRESS, DEVICE_TOKEN.encode()).hex(),
        "access token": keyring().digest(Purpose.ACCESS_TOKEN, ACCESS_TOKEN.encode()).hex(),
        "encrypted device token": bytes(registration.route.address_encrypted).hex(),
        "query topic": wire.content_topic(name),
        "message id": bytes(request.message_id).hex(),
        "metadata message id": bytes(request.request_key).hex(),
        "chat": (b"chat" * 16).hex(),
        "message": (b"message" * 16).hex(),
    }
    before = everything()
    assert not [what for what, mark in marks.items() if mark not in before]

    forget(KEY_HASH, now=timezone.now())

    after = everything()
    assert not [what for what, mark in marks.items() if mark in after]


def test_erasure_leaves_all_other_users_and_what_is_about_them():
    registration = make_user()
    request = NotificationRequest.objects.get()
    other = make_user(b"\x08" * 64)
    fields = {"public_key_hash": other.public_key_hash, "installation_id": other.installation_id, "position": 1}
    theirs = rows.make_notification(request=request, route=other.route, **fields)
    found = forget(bytes(registration.public_key_hash), now=timezone.now())
    assert (found.registrations, found.grants, found.notifications, found.query_topics) == (1, 1, 1, 1)
    counts = [model.objects.count() for model in (Registration, Route, Grant, TopicKey, DeadLetter, Attempt)]
    assert counts == [1] * 6
    assert theirs in Notification.objects.all()
    assert Notification.objects.count() == NotificationRequest.objects.count() == 2
    assert OutboundReply.objects.filter(envelope_hash=request.source_key).exists()


def test_the_history_of_an_erased_user_is_anonymous_and_copies_of_envelopes_are_recognised():
    registration, now = make_user(), timezone.now() + timedelta(seconds=1)
    [request] = NotificationRequest.objects.all()
    digests = {digest_of(bridge, bytes(request.request_key)): bridge for bridge in ("waku", "xmpp")}
    RequestDigest.objects.bulk_create(RequestDigest(digest=each, received_at=timezone.now()) for each in digests)
    hashes = set(InboundEnvelope.objects.values_list("hash", flat=True))
    assert forget(KEY_HASH, now=now)
    assert not forget(KEY_HASH, now=now)
    assert not find_traces(KEY_HASH)
    events = RegistrationEvent.objects.order_by("at").values_list("pseudonym", "kind")
    assert list(events) == [(registration.pseudonym, "registered"), (registration.pseudonym, "unregistered")]
    assert set(InboundEnvelope.objects.values_list("hash", flat=True)) == hashes
    assert InboundEnvelope.objects.get(reason="forgotten").state == InboundEnvelope.State.DROPPED
    assert [digests[bytes(row.digest)] for row in RequestDigest.objects.all()] == ["xmpp"]  # a repeat counts as new


def test_a_query_topic_that_another_user_shares_stays():
    make_user()
    own = TopicKey.objects.get()
    TopicKey.objects.create(name="ab" * 64, topic=own.topic, created_at=timezone.now())
    forget(KEY_HASH, now=timezone.now())
    assert InboundEnvelope.objects.get(state="pending_key").payload is not None
    assert DeadLetter.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_bridges_stop_reading_the_topic_of_an_erased_user():
    make_user()
    content_topic, listening = wire.content_topic(wire.query_name(KEY_HASH)), Listening()
    listening.refresh()
    assert content_topic in listening
    forget(KEY_HASH, now=timezone.now())
    listening.refresh()
    listening.close()
    assert content_topic not in listening


def test_erasure_removes_the_version_of_an_unregistered_installation():
    rows.make_registration(public_key_hash=KEY_HASH, route=None, state="unregistered", pseudonym=None)
    assert forget(KEY_HASH, now=timezone.now()).registrations == 1
    assert not Registration.objects.exists()


# Locks ----------------------------------------------------------------------------------------------------------------


# The rows of one client that other code locks, in this order.
OTHERS = {
    "processing": (OpenEnvelope, Registration, Route, OpenNotification),
    "recording": (EndedAttempt, Route, OpenNotification),
    "answering": (OpenRequest, OpenNotification),
}


def make_client():
    """Make one row of every kind about the canary, which can be erased like any user."""
    key_hash = canary_identity().key_hash
    rows.make_story(public_key_hash=key_hash)
    rows.delete_all(InboundEnvelope)
    query = rows.make_envelope(content_topic=wire.content_topic(wire.query_name(key_hash)))
    mark(query.hash, now=timezone.now())


def forget_canary():
    forget(canary_identity().key_hash, now=timezone.now())


def remove_canary():
    remove_traces(now=timezone.now())


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("remove", [forget_canary, remove_canary])
@pytest.mark.parametrize("models", OTHERS.values(), ids=OTHERS)
def test_a_removal_holds_no_lock_that_the_sessions_need_for_which_it_waits(remove, models):
    make_client()
    first, *others = models
    with transaction.atomic():
        first.objects.select_for_update().get()
        removal = beside(remove)
        for model in others:
            model.objects.select_for_update(nowait=True).get()
    removal.result(20)
    assert not Registration.objects.exists()
