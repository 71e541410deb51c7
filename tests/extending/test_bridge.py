"""Test-only bridge, defined in this file. It registers itself, and no module outside names it."""

from collections.abc import Iterator, Sequence

import pytest
from django.utils import timezone

from kit.batches.batch import Batch, Step, Wakeup, Work
from kit.buckets.shared import own_buckets
from notifications import tasks
from notifications.acceptance import acceptance
from notifications.acceptance.acceptance import Accepted, Incoming
from notifications.delivery.steps import Delivery
from notifications.messages import Answer, PushNotification, PushRequest, ReportError
from notifications.models import NotificationRequest
from tests.rig.delivering import DeliveryProcess
from tests.rig.rows import make_registration

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
        accepted = acceptance.accept(NAME, batch.taken, limits=self._delivery.limits, now=batch.now)
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
        patch.setattr(tasks, "_registered", {})  # without the Waku bridge
        tasks.register_bridge(NAME, TestBridge)
        yield


class Post(DeliveryProcess):
    """A worker process with every registered bridge."""

    def __init__(self) -> None:
        super().__init__()
        [open_it] = tasks._registered.values()
        self.open(open_it)


def test_a_request_is_pushed_and_answered_where_it_came_from() -> None:
    phone, post = make_registration(access_token=TOKEN), Post()
    push = PushNotification(
        bytes(phone.public_key_hash), phone.installation_id, access_token=TOKEN, type=1, message=b"sealed"
    )
    asked = PushRequest(b"status message", (push,))
    post.bridge.take(Incoming(b"request", b"source", b"address", b"sender", asked, timezone.now()))
    post.process_backlog()
    [answer] = post.bridge.sent
    assert (answer.bridge, answer.source_key) == (NAME, b"source")
    assert (answer.reply_address, answer.message_id) == (b"address", b"status message")
    assert [(report.success, report.error) for report in answer.reports] == [(True, ReportError.NONE)]
    assert [push.message for push in post.gateway.pushes] == [b"sealed"]
    row = NotificationRequest.objects.get()
    assert (row.bridge, row.state, row.reply_address) == (NAME, "answered", None)
