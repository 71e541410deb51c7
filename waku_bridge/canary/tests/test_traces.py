"""Traces of a killed run are found and removed, and all other rows stay."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from notifications.models import Attempt, Notification, NotificationRequest
from registrations.models import Grant, Registration, RegistrationEvent, Route, TopicKey
from tests import factories
from tests.conversation import put, say, to_server
from waku_bridge.canary import traces
from waku_bridge.identity import canary_identity
from waku_bridge.messages import MessageType
from waku_bridge.models import CanaryEnvelope, CanaryRun, InboundEnvelope, OutboundReply

pytestmark = pytest.mark.django_db(transaction=True)
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
TOUCHED = (
    *(Registration, Route, Grant, RegistrationEvent, TopicKey),
    *(NotificationRequest, Notification, Attempt, InboundEnvelope, OutboundReply),
)


def make_everything(key_hash: bytes, *, pseudonym) -> bytes:
    """Make a row of each kind about one client, and return the hash of its envelope."""
    registration = factories.make_registration(public_key_hash=key_hash, pseudonym=pseudonym)
    factories.make_grant(registration)
    factories.make_event(pseudonym=pseudonym)
    factories.make_topic_key(public_key_hash=key_hash)
    request = factories.make_request()
    notification = factories.make_notification(request=request, route=registration.route, public_key_hash=key_hash)
    factories.make_attempt(notification)
    factories.make_envelope(hash=request.source_key)
    factories.make_reply(envelope_hash=request.source_key)
    return bytes(request.source_key)


def row_counts() -> dict[str, int]:
    return {model.__name__: model.objects.count() for model in TOUCHED}


def test_all_rows_of_the_canary_are_removed_and_all_others_stay() -> None:
    make_everything(b"\x01" * 64, pseudonym=uuid4())
    before = row_counts()
    traces.mark(make_everything(canary_identity().key_hash, pseudonym=uuid4()), now=NOW)
    assert row_counts() != before
    traces.remove_traces(now=NOW)
    assert row_counts() == before
    assert min(before.values()) == 1


def test_events_are_removed_after_their_registration_lost_its_pseudonym() -> None:
    run = factories.make_canary_run(state=CanaryRun.State.INTERRUPTED, pseudonym=uuid4())
    factories.make_event(pseudonym=run.pseudonym)
    before = row_counts()
    traces.remove_traces(now=NOW)
    assert row_counts() == {**before, "RegistrationEvent": 0}
    assert CanaryRun.objects.get().pseudonym is None


def test_a_late_copy_of_a_message_is_removed_within_the_hour() -> None:
    message = to_server(b"late", MessageType.QUERY, canary_identity())
    [envelope_hash] = put(message)
    traces.mark(envelope_hash, now=NOW)
    traces.remove_traces(now=NOW)
    say(message)
    assert row_counts()["InboundEnvelope"] == 1
    traces.remove_traces(now=NOW + timedelta(minutes=59))
    assert row_counts()["InboundEnvelope"] == 0
    traces.remove_traces(now=NOW + timedelta(minutes=61))
    assert not CanaryEnvelope.objects.exists()
