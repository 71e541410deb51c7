"""Test-only bridge with its operators' side, defined in this file. No module outside names it."""

from collections.abc import Iterator, Sequence

import pytest
from django.test import Client
from django.utils import timezone

from kit.batches.batch import Batch, Step, Wakeup, Work
from kit.buckets.shared import own_buckets
from notifications import tasks
from notifications.acceptance import acceptance
from notifications.acceptance.acceptance import Accepted, Incoming
from notifications.delivery.steps import Delivery
from notifications.messages import Answer, PushNotification, PushRequest, ReportError
from notifications.models import NotificationRequest
from pushserver.console import parts
from pushserver.console.health.verdicts import Facts, Group, Kind, State, Verdict
from pushserver.console.part import ListPage, Part
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


def arrivals(facts: Facts) -> Verdict:
    return Verdict(State.GREEN, f"took {facts['test-requests']} requests")


PART = Part(
    name=NAME,
    label="Test bridge",
    is_bridge=True,
    kinds=(Kind("test-bridge", Group.IN, "Test bridge", "PushServerNoBridge", arrivals),),
    read=lambda _facts: {"test-requests": NotificationRequest.objects.filter(bridge=NAME).count()},
    list_pages=(ListPage("Test bridge", "What came by it", "mail", "notifications.notificationrequest"),),
)


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


def ask(post: Post) -> None:
    phone = make_registration(access_token=TOKEN)
    push = PushNotification(
        bytes(phone.public_key_hash), phone.installation_id, access_token=TOKEN, type=1, message=b"sealed"
    )
    asked = PushRequest(b"status message", (push,))
    post.bridge.take(Incoming(b"request", b"source", b"address", b"sender", asked, timezone.now()))
    post.process_backlog()


def test_a_request_is_pushed_and_answered_where_it_came_from() -> None:
    post = Post()
    ask(post)
    [answer] = post.bridge.sent
    assert (answer.bridge, answer.source_key) == (NAME, b"source")
    assert (answer.reply_address, answer.message_id) == (b"address", b"status message")
    assert [(report.success, report.error) for report in answer.reports] == [(True, ReportError.NONE)]
    assert [push.message for push in post.gateway.pushes] == [b"sealed"]
    row = NotificationRequest.objects.get()
    assert (row.bridge, row.state, row.reply_address) == (NAME, "answered", None)


def test_operators_see_the_new_bridge_like_any_other(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PARTS", [*parts.PARTS, PART])  # its line in `pushserver/console/parts.py`
    ask(Post())

    first_page = admin_client.get("/admin/").content.decode()

    assert "took 1 requests" in first_page
    assert "What came by it" in first_page  # in the menu
