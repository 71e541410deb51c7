"""Tests of answering: by the process that holds the request in memory, from stored rows, or by another worker."""

import threading
from datetime import timedelta
from time import monotonic

import pytest
from django.db import OperationalError, transaction
from django.utils import timezone

from kit.batches.batch import Step, Work, Worker
from kit.db.statements import fetch
from notifications.acceptance import acceptance
from notifications.acceptance.acceptance import Incoming, Sending
from notifications.messages import ChannelKey, Outcome, PushNotification, PushRequest, ReportError, Result
from notifications.models import Attempt, Channel, Notification, NotificationRequest
from notifications.rules.deadlines import GRACE
from notifications.rules.reports import unpack
from tests.rig.delivering import APP, DeliveryProcess, Gate, RecordingGateway, make_due, prove
from tests.rig.rows import make_registration, make_route

pytestmark = pytest.mark.django_db
TOKEN = "c0ffee00-0000-4000-8000-000000000001"
SUCCESS, NOT_REGISTERED = (True, ReportError.NONE), (False, ReportError.NOT_REGISTERED)
BRIDGE = "test"


class RecordingBridge(Step):
    """A bridge that keeps the answers passed on to it."""

    follows = True

    def __init__(self):
        self.answers = []
        self.refused = set()

    def work(self, batch):
        if self.refused.intersection(answer.source_key for answer in batch.handed):
            raise ValueError
        return Work(list(batch.handed))

    def committed(self, decided):
        self.answers += decided

    def reported(self):
        return {bytes(a.source_key): [(r.success, r.error) for r in a.reports] for a in self.answers}


class AnsweringProcess(DeliveryProcess):
    """A worker process with a bridge."""

    def __init__(self, gateway=None, **options):
        super().__init__(gateway, **options)
        self.bridge = RecordingBridge()
        self.worker = Worker([*self.delivery.steps(), self.bridge], self.wakeup)

    def ask(self, *phones, key=b"k"):
        """Accept a request, as the step of a bridge does."""
        pushes = tuple(PushNotification(bytes(p.public_key_hash), p.installation_id, TOKEN, 1) for p in phones)
        sending = Sending(self.delivery.lease, self.delivery.limits)
        batch = [Incoming(key, key, b"address", b"sender", PushRequest(b"message " + key, pushes), timezone.now())]
        with transaction.atomic():
            accepted = acceptance.accept(BRIDGE, batch, sending=sending, now=timezone.now())
        self.delivery.accepted(accepted.claims, accepted.waiting)

    def process_results(self, count=1):
        """Process one batch once ``count`` results are there."""
        while len(self.delivery.sends.peek(count)) < count:
            self.wait()
        self.process_batch()


def to(*phones):
    """Choose the pushes to these phones."""
    key_hashes = {bytes(phone.public_key_hash) for phone in phones}
    return lambda push: push.public_key_hash in key_hashes


def make_phone(**route):
    return make_registration(access_token=TOKEN, **({"route": make_route(**route)} if route else {}))


@pytest.fixture
def process():
    return AnsweringProcess()


# From memory ----------------------------------------------------------------------------------------------------------


def test_a_request_is_answered_in_the_commit_of_its_last_result(process):
    process.ask(make_phone(), make_phone())
    process.process_results(2)
    assert process.bridge.reported() == {b"k": [SUCCESS, SUCCESS]}
    rows = fetch(
        "SELECT xmin::text FROM notifications_notificationrequest"
        " UNION SELECT xmin::text FROM notifications_notification UNION SELECT xmin::text FROM notifications_attempt"
    )
    assert len(rows) == 1
    assert NotificationRequest.objects.get().state == "answered"


def test_a_dead_token_is_reported_as_it_is_stored():
    process = AnsweringProcess(RecordingGateway(Outcome.DEAD))
    process.ask(make_phone(), make_registration(access_token="another"))
    process.process_results()
    assert process.bridge.reported() == {b"k": [NOT_REGISTERED, (False, ReportError.WRONG_TOKEN)]}
    assert Notification.objects.get().report == "not_registered"
    [decided] = unpack(NotificationRequest.objects.get().decided)
    assert (decided.position, decided.verdict) == (1, "wrong_token")


@pytest.mark.parametrize("outcome", [Outcome.TRANSIENT, Outcome.AMBIGUOUS, Outcome.CONFIG])
def test_an_open_notification_is_answered_as_success_and_its_report_stays(outcome):
    process = AnsweringProcess(RecordingGateway(outcome))
    process.ask(make_phone())
    process.process_results()
    assert process.bridge.reported() == {b"k": [SUCCESS]}
    assert Notification.objects.get().report == "success"
    Notification.objects.update(next_attempt_at=timezone.now())
    process.gateway.answer = lambda _: Result(Outcome.DEAD)
    process.process_backlog()
    row = Notification.objects.get()
    assert (row.state, row.report, len(process.bridge.answers)) == ("dead_token", "success", 1)


def test_waits_for_every_notification_of_the_request():
    slow, quick = make_phone(), make_phone()
    process = AnsweringProcess(Gate(to(slow)))
    process.ask(slow, quick)
    process.process_results()
    assert process.bridge.answers == []
    process.gateway.is_open.set()
    process.process_until(lambda: process.bridge.answers)
    assert process.bridge.reported() == {b"k": [SUCCESS, SUCCESS]}


def test_a_request_is_answered_when_it_is_due_with_the_results_so_far(settings):
    settings.REPLY_DEADLINE_SECONDS = 1.5  # enough for the other result, also on a busy machine
    hanging, dead = make_phone(), make_phone()
    process = AnsweringProcess(Gate(to(hanging), answer=Outcome.DEAD))
    process.ask(hanging, dead)
    process.process_until(lambda: process.bridge.answers)
    assert process.bridge.reported() == {b"k": [SUCCESS, NOT_REGISTERED]}
    process.gateway.is_open.set()
    process.process_backlog()
    assert len(process.bridge.answers) == 1
    assert set(Notification.objects.values_list("state", "report")) == {
        ("dead_token", "success"),
        ("dead_token", "not_registered"),
    }


def test_requests_are_forgotten_once_they_are_answered(process):
    for number in range(5):
        process.ask(make_phone(), key=bytes([number]))
    process.process_backlog()
    waiting = process.delivery.waiting
    assert (waiting.next_due_at(), waiting.has_ready(), waiting._by_id) == (None, False, {})


# By another worker ----------------------------------------------------------------------------------------------------


def test_the_second_of_two_workers_answers_nothing_and_forgets_the_request(process):
    phone = make_phone()
    slow, other = AnsweringProcess(Gate(to(phone))), process
    slow.ask(phone)
    other.process_batch(now=NotificationRequest.objects.get().reply_due_at + GRACE)
    slow.gateway.is_open.set()
    slow.process_results()
    assert (len(other.bridge.answers), slow.bridge.answers) == (1, [])
    assert slow.delivery.waiting.next_due_at() is None
    assert Notification.objects.get().state == "delivered"


def test_another_worker_sends_the_pushes_of_a_dead_one_and_answers_once(process):
    phone = make_phone()
    dead, other = AnsweringProcess(Gate(to(phone))), process
    dead.ask(phone)
    later = timezone.now() + dead.delivery.lease
    other.process_batch(now=later)
    other.process_batch(now=later)
    other.process_backlog(now=later)
    assert Notification.objects.get().state == "delivered"
    assert [a.code for a in Attempt.objects.order_by("number")] == ["worker_lost", "code"]
    assert len(other.bridge.answers) == 1
    dead.gateway.is_open.set()


# When something goes wrong --------------------------------------------------------------------------------------------


class Last(Step):
    """A step that fails while it is broken, after all others of the batch."""

    is_broken = True

    def next_at(self):
        return 0.0 if self.is_broken else None

    def work(self, _batch):
        raise OperationalError


def test_after_a_failed_batch_the_answer_is_what_is_stored():
    """The batch found a token dead. Earlier, enough deaths were stored elsewhere that none is believed any more."""
    prove(ChannelKey(1, APP))
    process = AnsweringProcess(RecordingGateway(lambda _: Result(Outcome.DEAD, "BadDeviceToken", is_guarded=True)))
    last = Last()
    process.worker = Worker([*process.delivery.steps(), process.bridge, last], process.wakeup)
    process.ask(make_phone(token_type=1, app_topic=APP))
    with pytest.raises(OperationalError):
        process.process_results()
    assert Notification.objects.get().state == "in_flight"
    last.is_broken = False
    Channel.objects.update(deaths_distrusted_since=timezone.now())
    process.bridge.answers.clear()
    process.process_batch()
    assert (Notification.objects.get().state, process.bridge.reported()) == ("retrying", {b"k": [SUCCESS]})


def test_a_request_that_cannot_be_answered_stops_no_other_and_is_closed(process):
    for key in (b"one", b"bad", b"two"):
        process.ask(make_phone(), key=key)
    process.bridge.refused = {b"bad"}
    process.process_until(lambda: len(process.bridge.answers) == 2)
    assert process.bridge.reported() == {b"one": [SUCCESS], b"two": [SUCCESS]}
    row = NotificationRequest.objects.get(request_key=b"bad")
    later = row.reply_due_at + timedelta(seconds=1)
    process.process_until(lambda: not NotificationRequest.objects.filter(state="waiting").exists(), now=later)
    assert len(process.bridge.answers) == 2
    assert process.process_batch(now=later) is False


def test_a_repeat_of_a_request_that_was_closed_without_an_answer_is_answered(process):
    process.ask(make_phone())
    process.bridge.refused = {b"k"}
    process.process_until(lambda: Notification.objects.get().state == "delivered")
    later = timezone.now() + timedelta(minutes=1)
    process.process_until(lambda: NotificationRequest.objects.get().state == "answered", now=later)
    assert process.bridge.answers == []
    process.bridge.refused = set()
    sending = Sending(process.delivery.lease, process.delivery.limits)
    phone = Notification.objects.get()
    push = PushNotification(bytes(phone.public_key_hash), phone.installation_id, TOKEN, 1)
    again = Incoming(b"k", b"another", b"address", b"sender", PushRequest(b"message k", (push,)), timezone.now())
    accepted = acceptance.accept(BRIDGE, [again], sending=sending, now=timezone.now())
    assert [[(r.success, r.error) for r in answer.reports] for answer in accepted.answers] == [[SUCCESS]]


@pytest.mark.django_db(transaction=True)
def test_two_workers_on_the_same_rows_send_each_push_once_and_lose_none():
    notifications = [make_due(route=make_registration().route) for _ in range(300)]
    processes = [AnsweringProcess(limit=40) for _ in range(2)]
    threads = [threading.Thread(target=process.worker.run) for process in processes]
    for thread in threads:
        thread.start()
    wait_until(lambda: not Notification.objects.exclude(state="delivered").exists())
    for process in processes:
        process.worker.stop(timeout_seconds=10)
    for thread in threads:
        thread.join(30)
    pushed = [push.notification_id for process in processes for push in process.gateway.pushes]
    assert sorted(pushed) == sorted(n.pk for n in notifications)
    assert Attempt.objects.count() == len(notifications)
    answers = [bytes(answer.source_key) for process in processes for answer in process.bridge.answers]
    assert sorted(answers) == sorted(bytes(n.request.source_key) for n in notifications)


def wait_until(is_so, seconds=60):
    deadline, pause = monotonic() + seconds, threading.Event()
    while not is_so():
        assert monotonic() < deadline, "it does not happen"
        pause.wait(0.05)
