"""Test-only bridge, defined in this file. It registers itself, and no module outside names it."""

from collections.abc import Iterator, Sequence

import pytest
from django.utils import timezone

from kit.batches.batch import Batch, Step, Wakeup, Work
from kit.buckets.shared import own_buckets
from notifications import bridges
from notifications.acceptance import acceptance
from notifications.acceptance.acceptance import Accepted, Incoming, Sending
from notifications.acceptance.storing import digest_of
from notifications.delivery.steps import Delivery
from notifications.messages import Answer, Outcome, PushNotification, PushRequest, ReportError, Result
from notifications.models import NotificationRequest, RequestDigest
from tests.delivering import DeliveryProcess, RecordingGateway, SilentGateway
from tests.factories import make_registration

pytestmark = pytest.mark.django_db
NAME = "test-bridge"
TOKEN = "c0ffee00-0000-4000-8000-000000000001"


class TestBridge:
    """Bridge that takes requests from a list and writes answers into another one."""

    __test__ = False

    def __init__(self, delivery: Delivery, wakeup: Wakeup) -> None:
        self.arrived: list[Incoming] = []
        self.sent: list[Answer] = []
        self._delivery = delivery
        self._wakeup = wakeup

    def intake(self) -> Sequence[Step]:
        return [Intake(self, self._delivery)]

    def outlet(self) -> Sequence[Step]:
        return [Outlet(self)]

    def take(self, *incoming: Incoming) -> None:
        """Queue requests of senders."""
        self.arrived += incoming
        self._wakeup.set()


class Intake(Step):
    def __init__(self, bridge: TestBridge, delivery: Delivery) -> None:
        self._bridge = bridge
        self._delivery = delivery

    def next_at(self) -> float | None:
        return 0.0 if self._bridge.arrived else None

    def work(self, batch: Batch) -> Work[Accepted]:
        batch.taken = self._bridge.arrived[: batch.limit]
        sending = Sending(self._delivery.lease, self._delivery.limits)
        accepted = acceptance.accept(NAME, batch.taken, sending=sending, now=batch.now)
        self._bridge.arrived = self._bridge.arrived[batch.limit :]
        return Work(accepted, accepted.answers, is_more_left=bool(self._bridge.arrived))

    def committed(self, decided: Accepted) -> None:
        self._delivery.accepted(decided.claims, decided.waiting)
        own_buckets().keep()

    def rolled_back(self, batch: Batch) -> None:
        own_buckets().take_back()
        self._delivery.limits.give_back()
        self._bridge.arrived = [*batch.taken, *self._bridge.arrived]


class Outlet(Step):
    follows = True

    def __init__(self, bridge: TestBridge) -> None:
        self._bridge = bridge

    def work(self, batch: Batch) -> Work[list[Answer]]:
        return Work([each for each in batch.handed if isinstance(each, Answer) and each.bridge == NAME])

    def committed(self, decided: list[Answer]) -> None:
        self._bridge.sent += decided


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(bridges, "_registered", {})  # without the Waku bridge
        bridges.register(NAME, TestBridge)
        yield


class Post(DeliveryProcess):
    """A worker process with every registered bridge."""

    def __init__(self, gateway: RecordingGateway | None = None, **options) -> None:
        super().__init__(gateway, **options)
        [open_it] = bridges._registered.values()
        self.open(open_it)

    def exchange(self, *incoming: Incoming) -> list[Answer]:
        """Take requests, and return the answers that were sent once nothing is under way."""
        self.bridge.take(*incoming)
        self.process_backlog()
        return self.bridge.sent


def request(*registrations, key: bytes = b"request", **fields) -> Incoming:
    pushes = tuple(
        PushNotification(bytes(r.public_key_hash), r.installation_id, **{"access_token": TOKEN, "type": 1} | fields)
        for r in registrations
    )
    return Incoming(
        key,
        b"source of " + key,
        b"address of " + key,
        b"sender",
        PushRequest(b"status message", pushes),
        timezone.now(),
    )


def results_of(answer: Answer) -> list[tuple[bool, int]]:
    return [(report.success, report.error) for report in answer.reports]


def test_a_request_is_pushed_and_answered_where_it_came_from() -> None:
    phone, post = make_registration(access_token=TOKEN), Post()
    [answer] = post.exchange(request(phone, message=b"sealed"))
    assert (answer.bridge, answer.source_key) == (NAME, b"source of request")
    assert (answer.reply_address, answer.message_id) == (b"address of request", b"status message")
    assert results_of(answer) == [(True, ReportError.NONE)]
    assert [push.message for push in post.gateway.pushes] == [b"sealed"]
    row = NotificationRequest.objects.get()
    assert (row.bridge, row.state, row.reply_address) == (NAME, "answered", None)


def test_reports_are_in_the_order_of_the_request() -> None:
    alice, bob, nobody = (make_registration(access_token=TOKEN) for _ in range(3))
    nobody.delete()
    dead = alice.installation_id
    gateway = RecordingGateway(
        lambda push: Result(Outcome.DEAD if push.public_key_hash == bytes(alice.public_key_hash) else Outcome.DELIVERED)
    )
    [answer] = Post(gateway).exchange(request(alice, nobody, bob))
    missing = (False, ReportError.NOT_REGISTERED)
    assert results_of(answer) == [missing, missing, (True, ReportError.NONE)]
    assert answer.reports[0].installation_id == dead


def test_a_request_that_is_decided_at_once_is_answered_in_the_same_batch() -> None:
    post = Post()
    post.bridge.take(request(make_registration(access_token="another")))
    post.process_batch()
    [answer] = post.bridge.sent
    assert results_of(answer) == [(False, ReportError.WRONG_TOKEN)]
    assert post.gateway.pushes == []


def test_a_repeat_is_answered_like_the_first_and_not_pushed_again() -> None:
    phone, post = make_registration(access_token=TOKEN), Post()
    post.exchange(request(phone))
    first, again = post.exchange(request(phone))
    assert first == again
    assert len(post.gateway.pushes) == 1


def test_the_same_request_key_at_another_bridge_is_another_request() -> None:
    phone, post = make_registration(access_token=TOKEN), Post()
    post.exchange(request(phone))
    NotificationRequest.objects.update(bridge="somewhere-else")
    stored = NotificationRequest.objects.get()
    RequestDigest.objects.update(digest=digest_of(stored.bridge, bytes(stored.request_key)))
    [_, answer] = post.exchange(request(phone))
    assert results_of(answer) == [(True, ReportError.NONE)]  # a duplicate push, which is reported as success
    assert len(post.gateway.pushes) == 1


def test_a_request_with_a_hanging_push_is_answered_at_its_deadline(settings) -> None:
    settings.REPLY_DEADLINE_SECONDS = 0.1
    post = Post(SilentGateway())
    post.bridge.take(request(make_registration(access_token=TOKEN)))
    post.process_until(lambda: post.bridge.sent)
    assert [results_of(answer) for answer in post.bridge.sent] == [[(True, ReportError.NONE)]]
    assert post.delivery.sends.under_way == 1


def test_answers_of_other_bridges_do_not_come_here() -> None:
    post = Post()
    [outlet] = post.bridge.outlet()
    others = Answer("somewhere-else", b"", b"", b"", ())
    assert outlet.work(Batch(1, timezone.now(), [others])).decided == []
