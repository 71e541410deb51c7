"""Pausing, tripping and resuming channels, and what becomes of their notifications meanwhile."""

from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from notifications import channels
from notifications.messages import ChannelKey, Outcome, Result, channel_key
from notifications.metrics import CHANNEL_TRIPS
from notifications.models import Attempt, Channel, Notification
from notifications.transitions import DUE
from tests.delivering import APP, NOW, answered, claimed, fresh, make_due, make_due_to_app, recorded, send

pytestmark = pytest.mark.django_db
APPLE, GOOGLE = ChannelKey(1, APP), ChannelKey(2, "")
PROBE = timedelta(seconds=30)
State = Notification.State


@pytest.fixture(autouse=True)
def _probes(settings):
    settings.CHANNEL_PROBE_SECONDS = PROBE.total_seconds()


def state_of(key):
    return Channel.objects.get(**key._asdict()).state


def due_ids(now=NOW):
    """What a worker looks at when it looks for what is due."""
    due = Notification.objects.filter(state__in=DUE, next_attempt_at__lte=now)
    return list(due.order_by("next_attempt_at", "pk").values_list("pk", flat=True))


def test_the_app_topic_of_a_firebase_registration_means_nothing():
    assert channel_key(2, "anything") == GOOGLE
    assert channel_key(1, APP) == APPLE


def test_every_change_tells_what_was_before():
    assert channels.pause(APPLE, by="ann", why="new key", now=NOW) == channels.Change(APPLE, "running", "paused")
    row = Channel.objects.get()
    assert (row.reason, row.changed_by, row.since, row.next_probe_at) == ("new key", "ann", NOW, None)
    assert channels.resume(APPLE, by="bob", now=NOW) == channels.Change(APPLE, "paused", "running", 0)


@pytest.mark.parametrize(
    ("start", "change", "after"),
    [
        ("paused", lambda: channels.pause(APPLE, by="bob", why="", now=NOW), "paused"),
        ("tripped", lambda: channels.pause(APPLE, by="bob", why="", now=NOW), "paused"),
        ("paused", lambda: channels.trip(APPLE, reason="", now=NOW), "paused"),
        ("tripped", lambda: channels.trip(APPLE, reason="", now=NOW), "tripped"),
        ("running", lambda: channels.resume(APPLE, by="bob", now=NOW), "running"),
        ("paused", lambda: channels.close_breaker(APPLE, now=NOW), "paused"),
        ("tripped", lambda: channels.close_breaker(APPLE, now=NOW), "running"),
    ],
)
def test_neither_breaker_nor_probe_overrules_an_operator(start, change, after):
    Channel.objects.create(**APPLE._asdict(), state=start, since=NOW)
    assert change().after == after
    assert state_of(APPLE) == after


def test_a_trip_is_an_error_in_the_log():
    with capture_logs() as logs:
        channels.trip(APPLE, reason="5 of 5 sends refused: InvalidProviderToken", now=NOW)
    [alarm] = [entry for entry in logs if entry["log_level"] == "error"]
    assert (alarm["event"], alarm["token_type"], alarm["apn_topic"]) == ("channel_tripped", 1, APP)
    assert "InvalidProviderToken" in alarm["reason"]


def test_only_the_trips_of_breakers_are_counted(django_capture_on_commit_callbacks):
    def trip(**by):
        before = CHANNEL_TRIPS.labels("ios")._value.get()
        with django_capture_on_commit_callbacks(execute=True):
            channels.trip(APPLE, reason="why", now=NOW, **by)
        channels.resume(APPLE, by="ann", now=NOW)
        return CHANNEL_TRIPS.labels("ios")._value.get() - before

    assert (trip(), trip(by="ann")) == (1, 0)


def test_nothing_of_a_paused_channel_is_tried_and_everything_else_is():
    channels.pause(APPLE, by="ann", why="", now=NOW)
    waiting, other_app, google = make_due_to_app(), make_due_to_app("other"), make_due()
    send(waiting, other_app, google)
    assert (fresh(other_app).state, fresh(google).state) == (State.DELIVERED, State.DELIVERED)
    row = fresh(waiting)
    assert (row.state, row.attempt_count, bytes(row.message)) == (State.PENDING, 0, b"m")
    assert not Attempt.objects.filter(notification=waiting).exists()


def test_firebase_is_one_channel_whatever_app_topic_its_routes_carry():
    channels.pause(GOOGLE, by="ann", why="", now=NOW)
    waiting = make_due()
    waiting.route.apn_topic = "anything"
    waiting.route.save()
    send(waiting)
    assert fresh(waiting).state == State.PENDING
    assert channels.resume(GOOGLE, by="ann", now=NOW).released_count == 1


def test_what_is_parked_is_not_looked_at_again_and_again():
    channels.pause(APPLE, by="ann", why="", now=NOW)
    waiting = make_due_to_app(state=State.RETRYING)
    assert due_ids() == [waiting.pk]
    send(waiting)
    assert due_ids(NOW + timedelta(days=1)) == []


def test_what_is_parked_goes_on_when_its_channel_is_resumed():
    channels.pause(APPLE, by="ann", why="", now=NOW)
    waiting = [make_due_to_app(state=state) for state in (State.PENDING, State.RETRYING, State.AMBIGUOUS)]
    scheduled = make_due_to_app(state=State.RETRYING, next_attempt_at=NOW + timedelta(hours=1))
    send(*waiting)
    assert channels.resume(APPLE, by="ann", now=NOW).released_count == 3
    later = NOW + timedelta(seconds=1)
    assert set(due_ids(later)) == {n.pk for n in waiting}
    assert fresh(scheduled).next_attempt_at == NOW + timedelta(hours=1)
    assert len(claimed(*waiting, now=later)) == 3


def test_what_is_parked_expires_at_its_time_and_not_before():
    channels.pause(APPLE, by="ann", why="", now=NOW)
    waiting = make_due_to_app()
    expires_at = waiting.expires_at
    send(waiting)
    assert due_ids(expires_at) == [waiting.pk]
    assert claimed(waiting, now=expires_at) == []
    assert fresh(waiting).state == State.EXPIRED


def test_a_notification_is_not_parked_when_its_channel_was_resumed_meanwhile():
    waiting = make_due_to_app()
    channels.pause(APPLE, by="ann", why="", now=NOW)
    channels.resume(APPLE, by="ann", now=NOW)
    channels.park([waiting.pk])
    assert fresh(waiting).next_attempt_at == waiting.next_attempt_at


def test_a_tripped_channel_is_probed_with_one_push_at_a_time():
    channels.trip(APPLE, reason="", now=NOW)
    waiting = [make_due_to_app() for _ in range(3)]
    assert claimed(*waiting, now=NOW + PROBE - timedelta(seconds=1)) == []
    [probe] = claimed(*waiting, now=NOW + PROBE)
    assert probe.is_probe
    assert claimed(*waiting, now=NOW + PROBE + timedelta(seconds=1)) == []
    assert len(claimed(*waiting, now=NOW + 2 * PROBE)) == 1


def test_a_probe_is_taken_from_what_is_parked_the_least_tried_first():
    channels.trip(APPLE, reason="", now=NOW)
    tried, untried = make_due_to_app(attempt_count=3), make_due_to_app()
    channels.park([tried.pk, untried.pk])
    assert due_ids() == []
    channels.release_probes(now=NOW + PROBE)
    assert due_ids(NOW + PROBE) == [untried.pk]


def test_a_probe_that_comes_through_closes_the_breaker():
    channels.trip(APPLE, reason="", now=NOW)
    probe, waiting = make_due_to_app(), make_due_to_app()
    channels.park([waiting.pk])
    later = NOW + PROBE
    answered(Result(Outcome.DELIVERED), probe, now=later)
    assert state_of(APPLE) == Channel.State.RUNNING
    assert due_ids(later + timedelta(seconds=1)) == [waiting.pk]


@pytest.mark.parametrize("outcome", [Outcome.CONFIG, Outcome.TRANSIENT, Outcome.DEAD])
def test_a_probe_that_fails_leaves_the_breaker_open(outcome):
    channels.trip(APPLE, reason="", now=NOW)
    answered(Result(outcome), make_due_to_app(), now=NOW + PROBE)
    assert state_of(APPLE) == Channel.State.TRIPPED


def test_the_success_of_a_push_sent_before_the_trip_does_not_close_the_breaker():
    held = claimed(make_due_to_app())
    channels.trip(APPLE, reason="", now=NOW)
    recorded([(claim, Result(Outcome.DELIVERED)) for claim in held])
    assert state_of(APPLE) == Channel.State.TRIPPED


def test_the_last_success_is_noted_by_the_minute():
    for at in (NOW, NOW + timedelta(seconds=59)):
        answered(Result(Outcome.DELIVERED), make_due_to_app(), now=at)
    assert Channel.objects.get().last_success_at == NOW
    answered(Result(Outcome.DELIVERED), make_due_to_app(), now=NOW + timedelta(minutes=1))
    assert Channel.objects.get().last_success_at == NOW + timedelta(minutes=1)


def test_a_dry_run_neither_closes_a_breaker_nor_counts_as_a_success_of_its_channel():
    probe = make_due_to_app()
    channels.trip(APPLE, reason="test", now=NOW)
    answered(Result(Outcome.DELIVERED, is_dry_run=True), probe, now=NOW + PROBE)
    assert fresh(probe).state == State.DELIVERED
    assert state_of(APPLE) == "tripped"
    assert Channel.objects.get().last_success_at is None
