"""Traces of a killed run are found and removed, and all other rows stay."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from notifications.models import Attempt, Notification, NotificationRequest
from registrations.models import Grant, Registration, RegistrationEvent, Route, TopicKey
from tests.rig import rows
from tests.rig.conversation import put, say, to_server
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


def row_counts() -> dict[str, int]:
    return {model.__name__: model.objects.count() for model in TOUCHED}


def test_all_rows_of_the_canary_are_removed_and_all_others_stay() -> None:
    rows.make_story()
    before = row_counts()
    traces.mark(rows.make_story(public_key_hash=canary_identity().key_hash).request.source_key, now=NOW)
    assert row_counts() != before
    traces.remove_traces(now=NOW)
    assert row_counts() == before
    assert min(before.values()) == 1


def test_events_are_removed_after_their_registration_lost_its_pseudonym() -> None:
    run = rows.make_canary_run(state=CanaryRun.State.INTERRUPTED, pseudonym=uuid4())
    rows.make_event(pseudonym=run.pseudonym)
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
