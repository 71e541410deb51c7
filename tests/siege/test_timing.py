"""Two-sample tests of what a sender can measure: how long its answers take while it is blocked, and while it is not.

Everything is real but the node and gorush. gorush is as slow as Apple and Google are, by chance.
"""

import json
import os
import random
import threading
import time
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count, cycle, pairwise
from math import exp, sqrt
from statistics import median, quantiles

import pytest
from django.conf import LazySettings
from django.db import connection
from django.utils import timezone

from kit.buckets.bucket import BucketLimits, Limit
from kit.http import Connections, submit
from notifications.gateways.gorush.client import GorushGateway
from notifications.messages import AppKey
from notifications.queues import halts
from registrations.messages import TokenType
from tests.flows.test_half_working import ANDROID, Gorush, Phone, World, open_world
from tests.rig.conversation import EPHEMERAL, push, put, registration, request
from tests.rig.delivering import Process
from tests.rig.peers import development_node
from waku_bridge.codec.envelope import decode
from waku_bridge.codec.errors import NotDecryptable
from waku_bridge.messages import PushResponse

pytestmark = [pytest.mark.chaos, pytest.mark.django_db(transaction=True)]
BLOCKED, FREE, OWN = b"b" * 64, b"f" * 64, b"o" * 64
SAMPLE, RATE, WARM_UP = int(os.environ.get("SAMPLE") or 300), 20, 40
UNLIMITED: BucketLimits = (Limit(1e6, 10.0), Limit(1e6, 10.0))
# Chance alone explains a greater difference of two samples once in a thousand tests.
LEAST_P = 0.001
SHIFTS_MS = (1, 2, 3, 5, 8, 12, 20, 30, 50, 100, 200)
numbers = count(1)


class SlowGorush(Gorush):
    """gorush that takes as long as Apple and Google take, mostly 50 to 150 ms."""

    def _answer(self, answer: object) -> None:
        time.sleep(random.lognormvariate(-2.4, 0.4))
        super()._answer(answer)


class Victim(Phone):
    """A phone whose user has blocked somebody."""

    def __init__(self) -> None:
        super().__init__(ANDROID)
        self.message = registration(self.identity, device_token=self.token, blocked_chat_list=(BLOCKED,))


@dataclass
class Siege:
    """A sender with two names, one of which its victim has blocked, and the server with a working process."""

    world: World
    victim: Phone
    taken: list[tuple[float, bytes]]  # when the node took each message

    def measure(self, groups: Sequence[Sequence[bytes]], *, own: Sequence[Phone] = ()) -> list[list[float]]:
        """Ask for pushes by the names of each group at once, and return how long each answer took.

        All are to the victim, but for those by the name `OWN`.
        """
        phones, due = cycle(own), time.monotonic()
        sent: list[tuple[float, list[bytes]]] = []
        for names in groups:
            pushes = [push((next(phones) if n == OWN else self.victim).identity, author=n) for n in names]
            ids = [b"%d" % next(numbers) for _ in names]
            messages = [request(p, signer=EPHEMERAL, message_id=pk) for p, pk in zip(pushes, ids, strict=True)]
            due += random.uniform(0.5, 1.5) / RATE
            time.sleep(max(0.0, due - time.monotonic()))
            sent.append((time.monotonic(), ids))
            put(*messages)
        time.sleep(4)
        answered = self._answered()
        return [[answered[message_id] - since for message_id in ids] for since, ids in sent]

    def _answered(self) -> dict[bytes, float]:
        """Return by message id when the node took the answer first."""
        answered: dict[bytes, float] = {}
        for at, payload in self.taken:
            with suppress(NotDecryptable):  # an answer to another sender
                body = decode(payload, [EPHEMERAL], EPHEMERAL).body
                if isinstance(body, PushResponse):
                    answered.setdefault(body.message_id, at)
        return answered


@pytest.fixture
def siege(settings: LazySettings) -> Iterator[Siege]:
    settings.ROUTE_LIMITS = settings.SENDER_LIMITS = UNLIMITED
    taken: list[tuple[float, bytes]] = []

    def note(body: bytes) -> None:
        taken.append((time.monotonic(), b64decode(json.loads(body)["payload"])))

    with open_world(SlowGorush) as world, development_node(note) as node:
        victim = Victim()
        world.register(victim)
        world.notify(victim)
        connection.close()  # the world's process was the leader
        client = Connections(silent_seconds=5)
        process = Process(GorushGateway(settings.GORUSH_URLS, client), nodes=[node])
        with working(process):
            siege = Siege(world, victim, taken)
            siege.measure([[OWN]] * WARM_UP, own=world.phones[ANDROID][:1])
            yield siege
        submit(client.close()).result(2)


@contextmanager
def working(process: Process) -> Iterator[None]:
    thread = threading.Thread(target=process.worker.run)
    thread.start()
    yield
    process.worker.stop(timeout_seconds=5)
    thread.join(20)


def compare(siege: Siege, *names: bytes, own: Sequence[Phone] = ()) -> list[list[float]]:
    """Ask by these names in a random order, and return the sample of each."""
    order = [*names] * SAMPLE
    random.shuffle(order)
    samples: dict[bytes, list[float]] = {name: [] for name in names}
    for name, [took] in zip(order, siege.measure([[name] for name in order], own=own), strict=True):
        samples[name].append(took)
    return list(samples.values())


def judge(state: str, first: Sequence[float], second: Sequence[float]) -> None:
    """Print how the samples differ, and what difference the test would find."""
    found = next((ms for ms in SHIFTS_MS if p_of(first, [each + ms / 1000 for each in second]) < LEAST_P), None)
    distance, p = distance_of(first, second), p_of(first, second)
    print(
        f"\n8: {state}: blocked {_shown(first)}, free {_shown(second)}: distance {distance:.3f}, p {p:.3f}"
        f" ({len(first)} + {len(second)} answers; {found} ms more would tell)"
    )
    assert p >= LEAST_P


def _shown(sample: Sequence[float]) -> str:
    low, *_, high = quantiles(sample, n=20)
    return f"{median(sample) * 1000:.1f} ms ({low * 1000:.1f} to {high * 1000:.1f})"


def distance_of(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the statistic of Kolmogorov and Smirnov: the greatest distance of the two empirical distributions."""
    both = sorted([(each, 1 / len(first)) for each in first] + [(each, -1 / len(second)) for each in second])
    height, distance = 0.0, 0.0
    for (value, step), (following, _) in pairwise([*both, (float("inf"), 0.0)]):
        height += step
        distance = max(distance, abs(height)) if following > value else distance
    return distance


def p_of(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the probability of a distance like that or greater, if chance alone decided."""
    size = sqrt(len(first) * len(second) / (len(first) + len(second)))
    scaled = (size + 0.12 + 0.11 / size) * distance_of(first, second)
    terms = ((-1) ** (k - 1) * exp(-2 * k * k * scaled * scaled) for k in range(1, 101))
    return min(1.0, 2 * sum(terms)) if scaled > 0.2 else 1.0


def test_answers_tell_nothing_while_the_queue_runs(siege: Siege) -> None:
    judge("a queue that runs", *compare(siege, BLOCKED, FREE))


def test_answers_to_requests_side_by_side_tell_nothing(siege: Siege) -> None:
    """A sender asks by two names at once, and takes the difference."""
    pairs = [[BLOCKED, FREE], [FREE, FREE]] * SAMPLE
    random.shuffle(pairs)
    apart: dict[bytes, list[float]] = {BLOCKED: [], FREE: []}
    for (name, _), (first, second) in zip(pairs, siege.measure(pairs), strict=True):
        apart[name].append(first - second)
    judge("the difference of two at once", apart[BLOCKED], apart[FREE])


def test_answers_tell_nothing_while_the_queue_is_halted(siege: Siege) -> None:
    halts.begin(halts.Kind.PAUSED, AppKey(TokenType.FIREBASE, ""), by="operator", reason="siege", now=timezone.now())
    judge("a halted queue", *compare(siege, BLOCKED, FREE))


def test_answers_tell_nothing_beyond_a_limit(siege: Siege, settings: LazySettings) -> None:
    """The limit of the victim's phone is used up. The sender's own phones tell how fast their queue is."""
    own = siege.world.phones[ANDROID][1:]
    tokens = SAMPLE // len(own) + 10
    settings.ROUTE_LIMITS = Limit(tokens, 1e6), Limit(tokens, 1e6)
    siege.measure([[FREE]] * tokens)
    blocked, merged, within = compare(siege, BLOCKED, FREE, OWN, own=own)
    judge("beyond a limit", blocked, merged)
    judge("beyond a limit, beside a phone within it", blocked, within)
