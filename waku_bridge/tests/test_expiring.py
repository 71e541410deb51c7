"""What ends by time: abandoned registrations, which leave a tombstone for a while, and rows of past days."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from kit.db.clock import day_of
from kit.db.partitions import MADE_AHEAD
from notifications.models import Notification
from pushserver.console.health.snapshot import take_snapshot
from pushserver.console.health.verdicts import State
from registrations.models import Grant, Registration, RegistrationEvent, Route, TopicKey
from tests.rig import rows
from waku_bridge import query_topics, tasks
from waku_bridge.models import EnvelopeHash, InboundEnvelope, OutboundReply

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 6, 1, tzinfo=UTC)
KEEP = timedelta(days=180)
LONG_AGO, LATELY = NOW - KEEP - timedelta(seconds=1), NOW - KEEP + timedelta(seconds=1)


def expire() -> int:
    return sum(tasks.end_unused(now=NOW, keep=KEEP))


def test_an_installation_neither_repeated_nor_reached_for_months_is_unregistered() -> None:
    registration = rows.make_registration(at=LONG_AGO, version=7, allowed_key_list=[b"x"])
    rows.make_grant(registration)
    rows.make_registration(at=LATELY)
    rows.make_registration(route=rows.make_route(last_success_at=LATELY), at=LONG_AGO)
    assert expire() == 1
    registration.refresh_from_db()
    assert (registration.state, registration.version, registration.route) == ("unregistered", 7, None)
    assert registration.access_token_encrypted is registration.pseudonym is None
    assert (registration.allowed_key_list, Grant.objects.count(), Route.objects.count()) == ([], 0, 2)
    assert [(event.kind, event.at) for event in RegistrationEvent.objects.all()] == [("expired", NOW)]
    assert Registration.objects.filter(state="active").count() == 2


def test_waiting_pushes_to_an_expired_installation_are_withdrawn() -> None:
    registration = rows.make_registration(at=LONG_AGO)
    rows.make_notification(
        state="retrying",
        due_at=NOW,
        route=registration.route,
        public_key_hash=registration.public_key_hash,
        installation_id=registration.installation_id,
    )
    expire()
    assert Notification.objects.get().state == "withdrawn"


def test_bridges_stop_reading_topics_of_keys_without_a_registration() -> None:
    kept = rows.make_registration(route=None, state="unregistered").public_key_hash
    for public_key_hash in (kept, b"g" * 64):
        rows.make_topic_key(public_key_hash=public_key_hash)
    assert sum(query_topics.stop_listening_to_nobody()) == 1
    assert TopicKey.objects.get().name == kept.hex()


def test_expiry_of_more_than_a_tenth_waits_for_an_operator() -> None:
    """Otherwise a clock that is half a year ahead would end every registration."""
    for _ in range(20):
        rows.make_registration(at=LONG_AGO)
    assert expire() == 0
    with pytest.raises(CommandError, match="No devices wait for this permission"):
        call_command("allow_expiry", "devices")
    [shown] = [each for each in take_snapshot(now=NOW).indicators if each.id == "registrations"]
    assert (shown.state, shown.sentence) == (
        State.YELLOW,
        "20 of 20 would expire at once, and wait until an operator allows it",
    )
    assert "`manage.py allow_expiry registrations`" in shown.first_step


# Rows of past days ----------------------------------------------------------------------------------------------------


TODAY = timezone.now()
DAY = timedelta(days=1)
KEPT = timedelta(days=3)
# The partition of an earlier day is dropped as a whole.
BEGIN = datetime.combine(day_of(TODAY - KEPT), datetime.min.time(), UTC)
OLD = BEGIN - timedelta(seconds=1)


def purge(now: datetime = TODAY) -> None:
    list(tasks.remove_old(now=now, keep=KEPT))


ENVELOPES = tasks.ENVELOPES, rows.make_envelope, InboundEnvelope
REPLIES = tasks.REPLIES, rows.make_reply, OutboundReply


@pytest.mark.parametrize("has_partition", [True, False])
@pytest.mark.parametrize(
    ("kind", "state"),
    [(kind, state) for kind in (ENVELOPES, REPLIES) for state in kind[-1].State],
    ids=lambda value: value if isinstance(value, str) else value[-1].__name__,
)
def test_old_envelopes_and_replies_are_removed_unless_they_wait(kind: Any, state: Any, has_partition: bool) -> None:
    table, make, model = kind
    if has_partition:
        table.make_from(OLD, to=TODAY)
    make(state=state, at=OLD)
    make(state=state, at=BEGIN)
    purge()
    assert model.objects.count() == (1 if state.is_terminal else 2)


def test_an_old_envelope_that_ended_today_stays() -> None:
    rows.make_envelope(state="failed", at=OLD, ended_on=day_of(TODAY))
    purge()
    assert InboundEnvelope.objects.exists()


def test_hashes_are_kept_for_longer_than_a_message_is_accepted() -> None:
    for number, at in enumerate((OLD - DAY, BEGIN - DAY, BEGIN)):
        EnvelopeHash.objects.create(hash=bytes([number]) * 32, sent_on=day_of(at))
    purge()
    assert set(EnvelopeHash.objects.values_list("sent_on", flat=True)) == {day_of(BEGIN - DAY), day_of(BEGIN)}


def test_partitions_are_created_days_ahead() -> None:
    later = TODAY + 30 * DAY
    purge(later)
    ahead = day_of(later + MADE_AHEAD * DAY)
    for table in (tasks.HASHES, tasks.ENVELOPES, tasks.REPLIES):
        assert ahead in table.days()
        assert min(table.days()) >= day_of(later - KEPT - DAY)
