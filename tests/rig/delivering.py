"""Worker processes in the thread of a test, with delivery alone or with Waku as the bridge, and notifications that are
due. All is real but the gateway, the nodes and the clock.
"""

import asyncio
import select
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

from django.conf import settings
from django.db import OperationalError, transaction
from django.utils import timezone

from kit.batches.batch import Batch, Step, Wakeup, Work
from kit.batches.worker import Worker
from notifications.delivery import recording, settling
from notifications.delivery.recording import Change, end_halts
from notifications.delivery.steps import Delivery
from notifications.gateways import Gateway
from notifications.messages import Answer, AppKey, Outcome, Push, Result
from notifications.models import Attempt, Notification, OpenNotification
from notifications.queues import queues
from notifications.queues.capacity import ConcurrencyLimits
from notifications.queues.claim import Claim, Done, claim, close_expired
from notifications.queues.halts import Reach
from tests.rig.rows import make_channel, make_notification, make_registration, make_route
from waku_bridge.bridge import WakuBridge
from waku_bridge.node import Nodes, WakuNode

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = timedelta(seconds=settings.DELIVERY_LEASE_SECONDS)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
APP = "im.status"
# Shared by tests that need no wakeup of their own.
WAKEUP = Wakeup()
TIMEOUT_SECONDS = 60


class RecordingGateway:
    """Gateway that records every push and answers with ``answer``: an outcome, or a function of the push."""

    def __init__(self, answer: Callable[[Push], Result] | Outcome = Outcome.DELIVERED) -> None:
        self.answer = answer if callable(answer) else lambda _: Result(answer, "code", latency_ms=7)
        self.pushes: list[Push] = []

    def refresh(self, *, now: datetime) -> None:
        """Do nothing."""

    def find_fault(self, _push: Push) -> Result | None:
        return None

    async def send(self, push: Push) -> Result:
        self.pushes.append(push)
        await asyncio.sleep(0)
        return self.answer(push)


class SilentGateway(RecordingGateway):
    """Gateway that takes every push and never answers."""

    async def send(self, push: Push) -> Result:
        self.pushes.append(push)
        await asyncio.Event().wait()
        raise AssertionError


class Gate(RecordingGateway):
    """Gateway that keeps pushes back until it is open: all, or those that ``keeps`` chooses."""

    def __init__(self, keeps: Callable[[Push], bool] = lambda _: True, **options: Any) -> None:
        super().__init__(**options)
        self.is_open, self._keeps = threading.Event(), keeps

    async def send(self, push: Push) -> Result:
        if self._keeps(push):
            await asyncio.to_thread(self.is_open.wait, 20)
        return await super().send(push)


class LockedStep(Step):
    """A step that meets a lock in every batch while it is locked, after the steps before it have worked."""

    is_locked = True

    def next_at(self) -> float | None:
        return 0.0 if self.is_locked else None

    def work(self, _batch: Batch) -> Work[None]:
        raise OperationalError


class DeliveryProcess:
    """Delivery of one worker process, whose batches run in the thread of the test."""

    def __init__(self, gateway=None, *, gateways=None, limit=1000) -> None:
        self.wakeup = Wakeup()
        self.gateway = gateway or RecordingGateway()
        self.delivery = Delivery(gateways or (lambda _: self.gateway), self.wakeup)
        self.delivery.limits = ConcurrencyLimits(limit, connections=10_000)
        self.worker = Worker(self.delivery.steps(), self.wakeup)

    def open(self, open_it) -> None:
        """Open a bridge and give its steps to the worker."""
        self.bridge = bridge = open_it(self.delivery, self.wakeup)
        steps: list[Step] = [*bridge.intake(), *self.delivery.steps(), *bridge.outlet()]
        self.worker = Worker(steps, self.wakeup)

    def process_batch(self, *, now=None) -> bool:
        """Process one batch, which also looks for rows. Return whether there is more to do."""
        self.worker._rows.look_at = 0.0
        return self.worker.process_batch(now=now or timezone.now())

    def process_until(self, is_over: Callable[[], object], *, seconds: float = TIMEOUT_SECONDS, now=None) -> None:
        """Process batches, each when the wakeup is set, until ``is_over`` returns true."""
        deadline = monotonic() + seconds
        while not is_over():
            assert monotonic() < deadline, f"not over after {seconds} s"
            if not self.process_batch(now=now) and not is_over():
                self.wait()

    def wait(self, seconds: float = 0.05) -> None:
        """Wait until the wakeup is set, for at most ``seconds``, and clear it."""
        readable, _, _ = select.select([self.wakeup], [], [], seconds)
        if readable:
            self.wakeup.clear()

    def process_backlog(self, *, now=None) -> None:
        """Process batches until nothing is left to do."""
        while self.process_batch(now=now) or self.delivery.under_way or self.delivery.limits.has_capacity_again():
            next_at = self.worker._next_at() if self.delivery.has_results() else None  # results are gathered
            self.wait(0.05 if next_at is None else max(next_at - monotonic(), 0.0))


class Process(DeliveryProcess):
    """A worker process with Waku as its bridge. Without nodes its replies stay in the outbox."""

    def __init__(
        self,
        gateway: Gateway | None = None,
        *,
        nodes: Iterable[WakuNode] = (),
        stores: Iterable[WakuNode] = (),
        limit: int = 128,
    ) -> None:
        super().__init__(gateway or SilentGateway(), limit=limit)
        self._nodes, self._stores = Nodes(nodes), Nodes(stores)
        self.open(self._open_bridge)

    def _open_bridge(self, delivery: Delivery, wakeup: Wakeup) -> WakuBridge:
        return WakuBridge(delivery, wakeup, nodes=self._nodes, stores=self._stores)


def wait_for_wakeup() -> None:
    """Wait until the asyncio loop sets the wakeup, for at most 20 ms."""
    readable, _, _ = select.select([WAKEUP.fileno()], [], [], 0.02)
    if readable:
        WAKEUP.clear()


def make_due(*, route=None, **fields) -> Notification:
    """Make a notification to a registered installation that was due long ago and expires in the far future."""
    route = route or make_registration().route
    fields = {"at": LONG_AGO, "expires_at": datetime(2100, 1, 1, tzinfo=UTC), "chat_id": b"c", "message": b"m"} | fields
    return make_notification(route=route, route_generation=route.generation, **fields)


def make_due_to_app(app_topic=APP, **fields) -> Notification:
    return make_due(route=make_registration(route=make_route(token_type=1, app_topic=app_topic)).route, **fields)


def prove(*keys: AppKey) -> None:
    """Make channels with an earlier delivery, so that their apps have queues of their own."""
    for key in keys:
        make_channel(key, last_success_at=LONG_AGO)


@contextmanager
def only(notifications) -> Iterator[None]:
    """Keep every notification but these from being due while the block runs."""
    others = OpenNotification.objects.exclude(pk__in=[n.pk for n in notifications])
    held = list(others.only("pk", "due_at"))
    others.update(due_at=datetime(2200, 1, 1, tzinfo=UTC))
    yield
    OpenNotification.objects.bulk_update(held, ["due_at"])


def send(*notifications, gateway=None, **options) -> set[int]:
    """Deliver these notifications until nothing is under way. Return the ids of the requests that had an attempt."""
    before = set(Attempt.objects.values_list("pk", flat=True))
    with only(notifications):
        DeliveryProcess(gateway, **options).process_backlog()
    return set(Attempt.objects.exclude(pk__in=before).values_list("notification__request", flat=True))


def take(*, limit=1000, now=NOW, limits=None) -> list[Claim]:
    """Claim due notifications. When a claim only found new queues, create those and claim again, as a worker does."""
    limits = limits or ConcurrencyLimits(1000, connections=10_000)
    for _ in range(3):
        claimed = claim(Batch(limit, now), limits)
        queues.create(claimed.new_queues)
        if claimed.claims:
            return claimed.claims
    return []


def expire(now: datetime) -> int:
    """Close what has expired, as a batch does, and return the number of notifications."""
    close_expired(batch := Batch(10, now))
    return len(batch.taken)


def claimed(*notifications, now=NOW) -> list[Claim]:
    """Claim these notifications and no others."""
    with only(notifications):
        return take(now=now)


def due_ids(*, now=NOW, limits=None) -> list[int]:
    """Return the ids of the notifications that a worker would claim, and leave them unclaimed."""
    with transaction.atomic():
        ids = [held.notification_id for held in take(now=now, limits=limits)]
        transaction.set_rollback(True)
    return ids


def settle(request_ids: Iterable[int], *, now: datetime = NOW) -> list[Answer]:
    """Answer those of these requests that can be answered, as a batch does."""
    locked = settling.lock(request_ids)
    return settling.answer([each for each in locked if each.is_complete or each.reply_due_at <= now], now=now)


def record(results: Sequence[Done], *, now=NOW, reach: Reach | None = None) -> list[Change]:
    """Record results as a batch does. Those without times began and ended at ``now``."""
    timed = [(claim, _timed(result, now)) for claim, result in results]
    return recording.record(timed, reach=Reach() if reach is None else reach, now=now)


def _timed(result: Result, now) -> Result:
    is_sent = not (result.is_untried or result.is_unreached)
    return replace(result, began_at=(result.began_at or now) if is_sent else None, ended_at=result.ended_at or now)


def recorded(results, *, now=NOW, reach: Reach | None = None) -> None:
    """Record results as a batch does, and end halts as it does after its commit."""
    record(results, now=now, reach=reach)
    end_halts(results, now=now)


def answered(result, *notifications, now=NOW) -> None:
    """Claim these notifications and record the same result for each."""
    recorded([(held, result) for held in claimed(*notifications, now=now)], now=now)


def fresh(row):
    return type(row).objects.get(pk=row.pk)
