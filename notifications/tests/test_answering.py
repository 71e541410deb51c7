"""Tests of answering: with the last result, at the deadline, or by another worker."""

from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from kit.batches.batch import Step, Work
from kit.batches.worker import Worker
from notifications.acceptance import acceptance
from notifications.acceptance.acceptance import Incoming
from notifications.messages import Outcome, PushNotification, PushRequest, ReportError
from notifications.models import Attempt, Notification, NotificationRequest
from tests.rig.delivering import DeliveryProcess, Gate, make_due
from tests.rig.rows import make_registration, make_route
from tests.rig.server import wait_until
from tests.rig.statements import at_once

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
        batch = [Incoming(key, key, b"address", b"sender", PushRequest(b"message " + key, pushes), timezone.now())]
        with transaction.atomic():
            accepted = acceptance.accept(BRIDGE, batch, limits=self.delivery.limits, now=timezone.now())
        self.delivery.accepted(accepted.claims, accepted.waiting)
        return accepted

    def process_results(self, count=1):
        """Process one batch once ``count`` results are there."""
        while len(self.delivery.peek(count)) < count:
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


# At the deadline ------------------------------------------------------------------------------------------------------


def test_a_request_is_answered_when_it_is_due_with_the_results_so_far(settings):
    settings.REPLY_DEADLINE_SECONDS = 3.0  # enough for the other result, also on a busy machine
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


# When something goes wrong --------------------------------------------------------------------------------------------


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
    process.ask(phone := make_phone())
    process.bridge.refused = {b"k"}
    process.process_until(lambda: Notification.objects.get().state == "delivered")
    later = timezone.now() + timedelta(minutes=1)
    process.process_until(lambda: NotificationRequest.objects.get().state == "answered", now=later)
    assert process.bridge.answers == []
    [answer] = process.ask(phone).answers
    assert [(report.success, report.error) for report in answer.reports] == [SUCCESS]


@pytest.mark.django_db(transaction=True)
def test_two_workers_on_the_same_rows_send_each_push_once_and_lose_none():
    notifications = [make_due(route=make_registration().route) for _ in range(300)]
    processes = [AnsweringProcess(limit=40) for _ in range(2)]

    def stop():
        wait_until(lambda: not Notification.objects.exclude(state="delivered").exists(), what="all are delivered")
        for process in processes:
            process.worker.stop(timeout_seconds=10)

    at_once(stop, *(process.worker.run for process in processes))
    pushed = [push.notification_id for process in processes for push in process.gateway.pushes]
    assert sorted(pushed) == sorted(n.pk for n in notifications)
    assert Attempt.objects.count() == len(notifications)
    answers = [bytes(answer.source_key) for process in processes for answer in process.bridge.answers]
    assert sorted(answers) == sorted(bytes(n.request.source_key) for n in notifications)
