"""How much may wait: by shares, and for one address."""

import secrets
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from notifications import acceptance, channels
from notifications.acceptance import Incoming, Sending
from notifications.admission import Admission, load_shares
from notifications.delivery.lanes import UNPROVEN, Lanes
from notifications.delivery.settling import settle
from notifications.messages import ChannelKey, PushNotification, PushRequest, ReportError
from notifications.models import Notification, NotificationRequest
from notifications.policy import Verdict
from notifications.reports import unpack
from registrations.models import Route
from tests.delivering import APP, LEASE, LONG_AGO, Desk, make_due, prove
from tests.factories import make_registration, make_route
from tests.statements import statements

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TOKEN = "c0ffee00-0000-4000-8000-000000000001"
APPLE, OTHER_APP, GOOGLE = ChannelKey(1, APP), ChannelKey(1, "another.app"), ChannelKey(2, "")
State = Notification.State
SUCCESS, OVERLOADED = ReportError.NONE, ReportError.INTERNAL_ERROR

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def admission(monkeypatch):
    """An admission that counts each time."""
    fresh = Admission()
    refresh = fresh.refresh
    monkeypatch.setattr(fresh, "refresh", lambda: (fresh.__init__(), refresh()))
    monkeypatch.setattr(acceptance, "own_admission", lambda: fresh)
    return fresh


def make_phone(channel=GOOGLE, *, is_proven=True):
    route = make_route(
        token_type=channel.token_type,
        apn_topic=channel.apn_topic,
        last_success_at=LONG_AGO if is_proven else None,
    )
    return make_registration(route=route, access_token=TOKEN)


def make_waiting(channel, count, *, is_proven=True, at=None):
    """Notifications that are due, each to a phone of its own."""
    at = at or timezone.now()
    routes = [make_phone(channel, is_proven=is_proven).route for _ in range(count)]
    return [make_due(route=route, at=at, expires_at=at + timedelta(days=1)) for route in routes]


def ask(*phones, lanes=None, now=NOW):
    """One request about each phone, in one batch."""
    batch = []
    for phone in phones:
        key = secrets.token_bytes(32)
        wanted = PushNotification(
            bytes(phone.public_key_hash), phone.installation_id, TOKEN, 1, b"chat", b"", b"sealed"
        )
        batch.append(Incoming(key, key, b"back", b"sender", PushRequest(key, (wanted,))))
    return acceptance.accept("test-door", batch, sending=Sending(LEASE, lanes or Lanes(1000)), now=now)


def told(accepted):
    return [report.error for answer in accepted.answers for report in answer.reports]


def verdicts():
    return [d.verdict for r in NotificationRequest.objects.order_by("pk") for d in unpack(r.decided)]


# Shares ---------------------------------------------------------------------------------------------------------------


def test_strangers_who_fill_their_share_refuse_nobody_whose_phone_was_reached_before(settings):
    """Their registrations cost nothing. They used to fill the only number there was, and every sender heard of it."""
    settings.MAX_OPEN_NOTIFICATIONS, settings.UNPROVEN_SHARE = 20, 0.1
    prove(GOOGLE)
    make_waiting(GOOGLE, 2, is_proven=False)
    assert told(ask(make_phone(GOOGLE, is_proven=False))) == [OVERLOADED]
    assert len(ask(make_phone(GOOGLE)).claims) == 1
    assert len(ask(make_phone(OTHER_APP, is_proven=False)).claims) == 1


def test_one_app_that_is_full_refuses_no_other_one(settings):
    settings.MAX_OPEN_NOTIFICATIONS, settings.UNPROVEN_SHARE = 5, 0.2
    prove(APPLE, GOOGLE)
    make_waiting(APPLE, 2)
    assert told(ask(make_phone(APPLE))) == [OVERLOADED]
    assert len(ask(make_phone(GOOGLE)).claims) == 1


def test_a_made_up_app_counts_for_the_share_of_what_is_not_proven(settings):
    settings.MAX_OPEN_NOTIFICATIONS, settings.UNPROVEN_SHARE = 20, 0.1
    prove(APPLE)
    for topic in ("made.up.1", "made.up.2"):
        make_waiting(ChannelKey(1, topic), 1)
    assert told(ask(make_phone(ChannelKey(1, "made.up.3")))) == [OVERLOADED]
    assert len(ask(make_phone(APPLE)).claims) == 1


def test_what_is_parked_counts_for_no_share(settings):
    settings.MAX_OPEN_NOTIFICATIONS, settings.UNPROVEN_SHARE = 4, 0.5
    prove(APPLE)
    parked = make_waiting(APPLE, 3)
    channels.pause(APPLE, by="ann", why="new key", now=timezone.now())
    channels.park([row.pk for row in parked])
    assert [share.waiting for share in load_shares(now=timezone.now())] == [0]
    assert told(ask(make_phone(APPLE))) == []


def test_what_is_parked_for_an_app_is_bounded_by_itself(admission, settings):
    settings.MAX_OPEN_NOTIFICATIONS = 3
    prove(APPLE, OTHER_APP)
    channels.pause(APPLE, by="ann", why="new key", now=timezone.now())
    channels.park([row.pk for row in make_waiting(APPLE, 3)])
    admission.refresh()
    assert admission.is_full(APPLE, is_route_proven=True)
    assert not admission.is_full(OTHER_APP, is_route_proven=True)


def test_what_comes_between_two_counts_is_counted_by_the_process(monkeypatch, settings):
    settings.MAX_OPEN_NOTIFICATIONS, settings.UNPROVEN_SHARE = 20, 0.1
    admission = Admission()
    monkeypatch.setattr(acceptance, "own_admission", lambda: admission)
    phones = [make_phone(is_proven=False) for _ in range(3)]
    answers = [told(ask(phone, lanes=Lanes(0))) for phone in phones]
    assert answers == [[], [], [OVERLOADED]]


def test_shares_are_counted_now_and_then_only():
    admission = Admission()
    with statements() as sent:
        admission.refresh()
    assert sent
    with statements() as sent:
        admission.refresh()
        assert not admission.is_full(GOOGLE, is_route_proven=True)
    assert not sent


def test_shares_say_what_waits_for_whom(settings):
    settings.MAX_OPEN_NOTIFICATIONS, settings.UNPROVEN_SHARE = 100, 0.1
    prove(APPLE, GOOGLE)
    make_waiting(APPLE, 2)
    make_waiting(APPLE, 1, is_proven=False)
    shares = {share.lane: (share.waiting, share.limit) for share in load_shares(now=timezone.now())}
    assert shares == {APPLE: (2, 45), GOOGLE: (0, 45), ChannelKey(1, UNPROVEN): (1, 10)}


# One address ----------------------------------------------------------------------------------------------------------


def test_of_what_waits_for_one_address_the_oldest_gives_way(settings):
    settings.MAX_OPEN_PER_ROUTE = 3
    phone = make_phone()
    for _ in range(5):
        ask(phone, lanes=Lanes(0))
    rows = list(Notification.objects.order_by("pk"))
    assert [row.state for row in rows] == [State.COALESCED] * 2 + [State.PENDING] * 3
    assert (rows[0].report, rows[0].finished_at, rows[0].message, rows[0].next_attempt_at) == (
        "success",
        NOW,
        None,
        None,
    )


def test_a_flood_of_one_address_stores_as_much_as_may_wait_and_tells_success(settings):
    settings.MAX_OPEN_PER_ROUTE = 3
    phone = make_phone()
    accepted = ask(*[phone] * 10, lanes=Lanes(0))
    assert (told(accepted), verdicts()) == ([SUCCESS] * 7, [Verdict.COALESCED] * 7)
    assert Notification.objects.filter(state=State.PENDING).count() == 3
    assert told(ask(*[phone] * 10, lanes=Lanes(0))) == [SUCCESS] * 9
    assert Notification.objects.filter(state=State.PENDING).count() == 3
    assert Notification.objects.count() == 4


def test_a_crowd_at_one_address_leaves_all_others_alone(settings):
    settings.MAX_OPEN_PER_ROUTE = 3
    others = [make_phone() for _ in range(5)]
    ask(*others, *[make_phone()] * 10, *others, lanes=Lanes(0))
    assert Notification.objects.filter(state=State.PENDING, route__in=[o.route for o in others]).count() == 10


def test_what_gave_way_is_told_as_success_to_whoever_still_waits(settings):
    settings.MAX_OPEN_PER_ROUTE = 1
    phone = make_phone()
    [waiting] = ask(phone, lanes=Lanes(0)).waiting
    ask(phone, lanes=Lanes(0))
    [answer] = settle([waiting.request_id], now=NOW + timedelta(minutes=1))
    assert [report.error for report in answer.reports] == [SUCCESS]


def test_what_is_sent_at_once_is_never_coalesced(settings):
    settings.MAX_OPEN_PER_ROUTE = 1
    assert len(ask(*[make_phone()] * 10).claims) == 10


def test_the_newest_of_a_crowd_is_delivered(settings):
    settings.MAX_OPEN_PER_ROUTE = 1
    phone = make_phone()
    ask(*[phone] * 10, lanes=Lanes(0), now=timezone.now())
    desk = Desk()
    desk.work_off()
    assert len(desk.gateway.pushes) == 1


def test_a_crowd_is_looked_for_only_where_there_is_one(settings):
    settings.MAX_OPEN_PER_ROUTE = 3
    with statements() as quiet:
        ask(make_phone(), lanes=Lanes(0))
    assert not any("row_number" in sql for sql in quiet)
    assert Route.objects.count() == 1
