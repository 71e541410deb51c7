"""The limit of an address over workers that freeze, are killed or roll back, met by envelopes of ever new keys."""

import random
from itertools import count
from typing import Any, NamedTuple

import pytest
from coincurve import PrivateKey

from kit.buckets import bucket, shared
from kit.buckets.bucket import FullAt, Limit
from kit.buckets.models import SharedBucket
from kit.buckets.shared import Share, SharedBuckets, own_buckets
from notifications.queues.tests.test_queues import refuse
from tests.limits.conftest import Instead, Time
from tests.rig.budget import first_everyday
from tests.rig.conversation import CLIENT, TOKEN, UUID, push, put, request
from tests.rig.delivering import Process, RecordingGateway
from tests.rig.rows import make_registration
from waku_bridge.codec.keys import Identity
from waku_bridge.messages import WakuMessage

pytestmark = pytest.mark.django_db
LIMITS = (Limit(30, 10.0), Limit(600, 3600.0))  # the default of ROUTE_LIMITS
MOST_AT_ONCE, FEW_AT_ONCE, STEPS = 12, 4, 40
POISON = 99  # a type of push that the database refuses, so that its batch is rolled back and halved
ENDS = ["charged"] * 4 + ["frozen", "killed", "halved"]
numbers = count(1_000_000)


class Worker:
    """A worker process, one of some number, with the shared buckets as it knows them."""

    def __init__(self, number: int, gateway: RecordingGateway, capacity: int = 1000) -> None:
        share = Share()
        share.part = 1 / number
        self.buckets, self.process = SharedBuckets(share, capacity), Process(gateway)


class Step(NamedTuple):
    """A batch of one worker, ``seconds`` after the last one, and how it ends."""

    worker: int
    seconds: float
    number: int
    end: str


class Fleet:
    """Workers that decide about pushes to one phone, one batch after the other."""

    def __init__(self, number: int, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time, self.behind, self._gateway = time, 0.0, RecordingGateway()
        self.workers = [Worker(number, self._gateway) for _ in range(number)]
        self.current = self.workers[0]
        monkeypatch.setattr(shared, "monotonic", self.seconds)
        make_registration(public_key_hash=CLIENT.key_hash, installation_id=UUID, access_token=TOKEN)
        refuse("notifications_opennotification", "INSERT", f"NEW.type = {POISON}")

    def seconds(self) -> float:
        """Return the time of a monotonic clock."""
        return self.time.seconds() + self.behind

    def set_clock_back(self, seconds: float) -> None:
        """Set the clock of the database back, while all workers know its time and have charged what they spent."""
        for worker in self.workers:
            worker.buckets.take([], now=self.time.now)
            worker.buckets.keep()
        self.time.passes(seconds=-seconds)
        self.behind += seconds

    def decide(self, step: Step, number: int) -> int:
        """Have a worker decide about this number of pushes, and return how many keep their content.

        One that is frozen charges before its next batch, and one that is killed never does.
        """
        self.current = worker = self.workers[step.worker]
        worker.buckets.keep()
        messages = [one_push() for _ in range(number)]
        if step.end == "halved":
            messages.insert(number // 2, one_push(type=POISON))
        known = len(self._gateway.pushes)
        put(*messages, now=self.time.now)
        with pytest.MonkeyPatch.context() as patch:
            if step.end in {"frozen", "killed"}:
                patch.setattr(worker.buckets, "keep", lambda: None)
            worker.process.process_backlog(now=self.time.now)
        if step.end == "killed":
            self.workers[step.worker] = Worker(len(self.workers), self._gateway)
        return len([each for each in self._gateway.pushes[known:] if each.message])


def one_push(**fields: Any) -> WakuMessage:
    """Return a request of a key that no test had before, about a message of its own."""
    number = next(numbers)
    signer = Identity(PrivateKey(number.to_bytes(32)))
    return request(push(message=b"sealed", **fields), signer=signer, message_id=b"%d" % number)


@pytest.fixture
def fleet(request: pytest.FixtureRequest, time: Time, instead: Instead, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    fleet = Fleet(request.param, time, monkeypatch)
    instead(own_buckets, lambda: fleet.current.buckets)
    return fleet


def steps_of(fleet: Fleet) -> list[Step]:
    chance, size = random.Random(len(fleet.workers)), len(fleet.workers)
    return [
        Step(chance.randrange(size), chance.choice((0, 0, 2, 5)), chance.randint(1, MOST_AT_ONCE), chance.choice(ENDS))
        for _ in range(STEPS)
    ]


SIZES = first_everyday(8, *range(1, 8))


@pytest.mark.parametrize("fleet", SIZES, indirect=True)
def test_below_the_limit_no_push_loses_its_content(fleet: Fleet) -> None:
    full_at: FullAt = ()
    for position, step in enumerate(steps_of(fleet)):
        fleet.time.passes(seconds=step.seconds)
        if position == STEPS // 2:
            fleet.set_clock_back(60)
        if step.end == "killed" and fleet.behind:
            step = step._replace(end="frozen")  # noqa: PLW2901 - nobody tells a new process of the clock
        asked = min(step.number, int(bucket.left(full_at, LIMITS, now=fleet.seconds())))
        assert fleet.decide(step, asked) == asked
        full_at = bucket.spend(full_at, LIMITS, asked, now=fleet.seconds())
    assert SharedBucket.objects.count() <= 2  # those of the address and of the server, and none of a sender


@pytest.mark.parametrize("fleet", SIZES, indirect=True)
def test_beyond_the_limit_content_passes_for_a_batch_of_each_worker_at_most(fleet: Fleet) -> None:
    """A batch that is killed before it was charged is one more. A fifth may pass silently, or a push of each worker."""
    passed, killed = list[tuple[float, int]](), 0
    for step in steps_of(fleet):
        fleet.time.passes(seconds=step.seconds / 5)
        passed.append((fleet.seconds(), fleet.decide(step, FEW_AT_ONCE)))
        killed += step.end == "killed"
    size, [(tokens, seconds), _] = len(fleet.workers), LIMITS
    more = (size + killed) * FEW_AT_ONCE + max(tokens / 5, size)
    for first, (start, _) in enumerate(passed):
        for last, (end, _) in enumerate(passed[first:], first):
            got = sum(number for _, number in passed[first : last + 1])
            assert got <= tokens + (end - start) * tokens / seconds + more
