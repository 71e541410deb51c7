"""Expiry: abandoned registrations end, and leave a tombstone for a while, as every unregistered one."""

from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import CommandError, call_command

from kit.health.indicators import State
from notifications.models import Notification
from pushserver.indicators.snapshot import take_snapshot
from registrations.models import Grant, Registration, RegistrationEvent, Route, TopicKey
from tests.rig import rows
from waku_bridge import query_topics
from waku_bridge.removal import expiring

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 6, 1, tzinfo=UTC)
KEEP = timedelta(days=180)
LONG_AGO, LATELY = NOW - KEEP - timedelta(seconds=1), NOW - KEEP + timedelta(seconds=1)


def expire() -> int:
    return sum(expiring.expire(now=NOW, keep=KEEP))


def test_an_installation_neither_repeated_nor_reached_for_months_is_unregistered() -> None:
    registration = rows.make_registration(at=LONG_AGO, version=7, allowed_key_list=[b"x"])
    rows.make_grant(registration)

    assert expire() == 1

    registration.refresh_from_db()
    assert (registration.state, registration.version, registration.route) == ("unregistered", 7, None)
    assert registration.access_token_encrypted is registration.pseudonym is None
    assert (registration.allowed_key_list, Grant.objects.count(), Route.objects.count()) == ([], 0, 0)
    assert [(event.kind, event.at) for event in RegistrationEvent.objects.all()] == [("expired", NOW)]


def test_an_installation_repeated_or_reached_lately_stays() -> None:
    rows.make_registration(at=LATELY)
    rows.make_registration(route=rows.make_route(last_success_at=LATELY), at=LONG_AGO)

    assert expire() == 0
    assert Registration.objects.filter(state="active").count() == 2


def test_waiting_pushes_to_an_expired_installation_are_withdrawn() -> None:
    registration = rows.make_registration(at=LONG_AGO)
    rows.make_notification(
        state="retrying",
        next_attempt_at=NOW,
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
