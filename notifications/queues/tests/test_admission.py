"""Tests of admission: how many notifications may wait in each queue and for one address, and how often it is woken."""

import secrets
from datetime import timedelta

import pytest
from django.utils import timezone

from notifications.acceptance import acceptance
from notifications.acceptance.tests.test_acceptance import NOW, TOKEN, accept, incoming, push
from notifications.messages import AppKey, QueueKey, ReportError
from notifications.models import Attempt, Notification, NotificationRequest, OpenNotification, OpenRequest, Queue
from notifications.policy import Verdict
from notifications.queues import halts, queues
from notifications.queues.capacity import Admission, ConcurrencyLimits, Counts, limits_of
from notifications.reports import MISSING, as_answered, errors_of, unpack
from tests.rig.delivering import APP, LONG_AGO, DeliveryProcess, make_due, prove, settle
from tests.rig.rows import make_registration, make_route

APPLE, OTHER_APP, GOOGLE = AppKey(1, APP), AppKey(1, "another.app"), AppKey(2, "")
State = Notification.State
A_MOMENT = timedelta(milliseconds=1)
SUCCESS, OVERLOADED = ReportError.NONE, ReportError.INTERNAL_ERROR

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def admission(monkeypatch):
    """Make an admission whose queues are counted and read again before each use."""
    own = Admission()
    refresh = own.refresh

    def count_and_refresh() -> None:
        count()
        own.__init__()
        refresh()

    monkeypatch.setattr(own, "refresh", count_and_refresh)
    monkeypatch.setattr(acceptance, "own_admission", lambda: own)


def count(counts=None, *, now=NOW):
    """Sort the waiting notifications into their queues and count them, as workers do."""
    counts = counts or Counts()
    counts.keep(counts.step(now=now))


def make_phone(app=GOOGLE, *, is_proven=True):
    route = make_route(
        token_type=app.token_type,
        app_topic=app.app_topic,
        last_success_at=LONG_AGO if is_proven else None,
    )
    return make_registration(route=route, access_token=TOKEN)


def make_waiting(app, count, *, is_proven=True):
    """Create due notifications, each for a phone of its own."""
    at = timezone.now()
    known = queues.load()
    key = known.key("gorush", app, is_proven=is_proven)
    queues.create([key])
    own = {"queue_id": queues.load().id_of(key), "expires_at": at + timedelta(days=1)}
    routes = [make_phone(app, is_proven=is_proven).route for _ in range(count)]
    return [make_due(route=route, at=at + n * A_MOMENT, **own) for n, route in enumerate(routes)]


def ask(*phones, limits=None, now=NOW, type_=1):
    """Accept one request for each phone, in one batch."""
    batch = []
    for phone in phones:
        key, to = secrets.token_bytes(32), {"installation_id": phone.installation_id, "type": type_}
        wanted = push(bytes(phone.public_key_hash), chat_id=b"chat", **to)
        batch.append(incoming(wanted, amm=key, envelope=key, message_id=key))
    return accept(batch, now=now, limits=limits)


def reported(accepted):
    """Return the errors of all reports that are known, whenever the sender hears of them."""
    waiting = OpenRequest.objects.filter(pk__in=[each.id for each in accepted.waiting]).order_by("pk")
    known = [as_answered(bytes(request.reports).replace(bytes([MISSING]), b"")) for request in waiting]
    answered = [report.error for answer in accepted.answers for report in answer.reports]
    return answered + [error for reports in known for error in errors_of(reports).values()]


def verdicts():
    return [d.verdict for r in NotificationRequest.objects.order_by("pk") for d in unpack(r.decided)]


# Queues ---------------------------------------------------------------------------------------------------------------


def test_a_full_queue_of_unproven_addresses_refuses_no_proven_address(settings):
    """Made-up registrations cost nothing. They used to fill the one common limit, and every sender received errors."""
    settings.MAX_OPEN_NOTIFICATIONS = 20
    prove(GOOGLE)
    make_waiting(GOOGLE, 2, is_proven=False)
    assert reported(ask(make_phone(GOOGLE, is_proven=False))) == [OVERLOADED]
    assert len(ask(make_phone(GOOGLE)).claims) == 1
    assert len(ask(make_phone(OTHER_APP, is_proven=False)).claims) == 1


def test_one_app_that_is_full_refuses_no_other_one(settings):
    settings.MAX_OPEN_NOTIFICATIONS = 5
    prove(APPLE, GOOGLE)
    make_waiting(APPLE, 2)
    assert reported(ask(make_phone(APPLE))) == [OVERLOADED]
    assert len(ask(make_phone(GOOGLE)).claims) == 1


def test_all_made_up_apps_share_one_queue(settings):
    settings.MAX_OPEN_NOTIFICATIONS = 40
    prove(APPLE)
    for topic in ("made.up.1", "made.up.2"):
        make_waiting(AppKey(1, topic), 1)
    assert reported(ask(make_phone(AppKey(1, "made.up.3")))) == [OVERLOADED]
    assert len(ask(make_phone(APPLE)).claims) == 1
    assert Queue.objects.filter(app_topic=None).count() == 1


def test_notifications_behind_a_halt_count_as_waiting(settings):
    """An outage of a gateway for hours used to fill the table without limit."""
    settings.MAX_OPEN_NOTIFICATIONS = 3
    prove(APPLE)
    make_waiting(APPLE, 2)
    halts.begin(halts.Kind.PAUSED, APPLE, by="ann", reason="new key", now=timezone.now())
    assert reported(ask(make_phone(APPLE))) == [OVERLOADED]


def test_the_limits_of_all_queues_together_do_not_exceed_the_maximum(settings):
    settings.MAX_OPEN_NOTIFICATIONS = 1000
    prove(APPLE, OTHER_APP, GOOGLE)
    queues.create([QueueKey("gorush", 1, None, is_proven=False), QueueKey("other", 2, "", is_proven=True)])
    limits = limits_of(queues.load().rows)
    assert sum(limits.values()) <= 1000
    assert sum(limit for queue, limit in limits.items() if queue.gateway == "gorush") <= 500


def test_a_process_counts_its_own_notifications_while_no_leader_counts(monkeypatch, settings):
    """No worker runs, and pushes that come in by XMPP are stored all the same."""
    settings.MAX_OPEN_NOTIFICATIONS = 20
    admission = Admission()
    prove(GOOGLE)
    monkeypatch.setattr("notifications.queues.capacity.READ_EVERY_SECONDS", 0)
    for _ in range(2):
        admission.refresh()
        admission.add("gorush", GOOGLE, is_proven=False)
    admission.refresh()
    assert admission.is_full("gorush", GOOGLE, is_proven=False)
    count(now=NOW)
    admission.refresh()
    assert not admission.is_full("gorush", GOOGLE, is_proven=False)


def test_the_count_has_the_waiting_notifications_of_each_queue(settings):
    settings.MAX_OPEN_NOTIFICATIONS = 100
    prove(APPLE, GOOGLE)
    make_waiting(APPLE, 2)
    make_waiting(APPLE, 1, is_proven=False)
    count()
    rows = queues.load().rows
    found = {queue[1:]: (rows[queue].waiting_count, limit) for queue, limit in limits_of(rows).items()}
    assert found == {(1, APP, True): (2, 45), (1, APP, False): (1, 5), (2, "", True): (0, 45), (2, "", False): (0, 5)}


def test_a_long_queue_is_counted_in_steps(monkeypatch):
    monkeypatch.setattr("notifications.queues.capacity.COUNTED_AT_ONCE", 3)
    prove(APPLE, GOOGLE)
    make_waiting(APPLE, 7)
    make_waiting(GOOGLE, 2)
    counts, seen = Counts(), []
    for _ in range(3):
        count(counts)
        rows = queues.load().rows
        seen.append([rows[QueueKey("gorush", *app, is_proven=True)].waiting_count for app in (APPLE, GOOGLE)])
    assert seen == [[0, 2], [0, 2], [7, 2]]


def test_the_leader_counts():
    prove(GOOGLE)
    make_waiting(GOOGLE, 2)
    halts.begin(halts.Kind.PAUSED, GOOGLE, by="ann", reason="new key", now=timezone.now())
    deliverer = DeliveryProcess()
    deliverer.process_batch()  # it becomes the leader in this batch
    deliverer.process_batch()
    assert sum(Queue.objects.values_list("waiting_count", flat=True)) == 2


# One address ----------------------------------------------------------------------------------------------------------


def test_a_flood_of_one_address_stores_as_much_as_may_wait_and_is_answered_with_success(settings):
    settings.MAX_OPEN_PER_ROUTE = 3
    phone = make_phone()
    accepted = ask(*[phone] * 10, limits=ConcurrencyLimits(0))
    assert (reported(accepted), verdicts()) == ([SUCCESS] * 7, [Verdict.COALESCED] * 7)
    assert Notification.objects.filter(state=State.PENDING).count() == 3
    assert reported(ask(*[phone] * 10, limits=ConcurrencyLimits(0))) == [SUCCESS] * 9
    assert Notification.objects.filter(state=State.PENDING).count() == 3
    [ended] = Notification.objects.exclude(state=State.PENDING)
    assert (ended.state, ended.message, ended.due_at) == ("coalesced", None, None)


def test_a_crowd_at_one_address_leaves_all_others_alone(settings):
    settings.MAX_OPEN_PER_ROUTE = 3
    others = [make_phone() for _ in range(5)]
    ask(*others, *[make_phone()] * 10, *others, limits=ConcurrencyLimits(0))
    assert Notification.objects.filter(state=State.PENDING, route__in=[o.route for o in others]).count() == 10


def test_a_coalesced_notification_is_reported_as_success_to_a_waiting_sender(settings):
    settings.MAX_OPEN_PER_ROUTE = 1
    phone = make_phone()
    [waiting] = ask(phone, limits=ConcurrencyLimits(0)).waiting
    ask(phone, limits=ConcurrencyLimits(0))
    [answer] = settle([waiting.id], now=NOW + timedelta(minutes=1))
    assert [report.error for report in answer.reports] == [SUCCESS]


def test_a_notification_that_is_sent_at_once_is_never_coalesced(settings):
    settings.MAX_OPEN_PER_ROUTE = 1
    assert len(ask(*[make_phone()] * 10).claims) == 10


# Wake-ups of one address ----------------------------------------------------------------------------------------------


def test_a_wake_up_that_expires_soon_stands_for_nothing_new():
    phone = make_phone()
    ask(*[phone] * 100)
    OpenNotification.objects.filter(is_wake_up=True).update(expires_at=NOW + timedelta(hours=11))
    ask(*[phone] * 5)
    assert Notification.objects.filter(is_wake_up=True).count() == 2


def test_an_unknown_type_is_no_way_around_the_limit():
    phone = make_phone()
    accepted = [ask(*[phone] * 50, type_=type_) for type_ in (1, 99, -1)]
    assert sum(len(each.claims) for each in accepted) == 30


def test_a_flood_of_one_phone_leaves_all_others_alone():
    phone, *others = [make_phone() for _ in range(21)]
    accepted = ask(*[phone] * 50, *others, *[phone] * 50)
    assert len(accepted.claims) == 50


def test_the_answer_about_a_wake_up_waits_for_no_attempt_of_it():
    phone = make_phone()
    ask(*[phone] * 31)
    requests = OpenRequest.objects.order_by("pk")
    assert [MISSING in bytes(request.reports) for request in requests] == [True] * 30 + [False]
    assert Attempt.objects.count() == 30
