"""Waku bridge under faults: no message that a node has taken is lost or processed twice.

`make chaos` runs the long test; a short one is in `make test`. The senders' record is the ground truth, and triggers in
PostgreSQL record the fate of each message. CHAOS_SEED repeats the order of faults and nodes, though not their exact
moments. CHAOS_COUNT and CHAOS_RATE make the run smaller, for a busy machine.
"""

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from embedded.supervisor.guard import Guard
from tests.chaos.bridges import NODES, Bridges, Lag, new_bridges
from tests.chaos.outages import Outages
from tests.chaos.passages import Passages, collect, show, so_far, watch
from tests.chaos.traffic import WAVES_PER_SECOND, Traffic
from tests.rig.server import wait_until

COUNT = int(os.environ.get("CHAOS_COUNT", "20000"))
RATE_PER_SECOND = int(os.environ.get("CHAOS_RATE", "200"))
SHORT_COUNT = 400
SHORT_RATE_PER_SECOND = 50
LOSSES = ("answers lost after the cache was drained", "caches much too small")
SHORT_FAULTS = ("answers lost after the cache was drained", "bridge killed", "database killed", "stores lose cursors")
TAKEOVER_SECONDS = 10
# Largest lag behind the stores without a fault, and how long it is sampled at the end.
LAG_SECONDS = 10
REST_SECONDS = 15
# A store that was rate-limited is read again after a minute, and on a busy machine the workers lag behind the sender.
OVER_SECONDS = 400


@pytest.fixture
def bridges(new_redis: Callable[[], str], guard: Guard, tmp_path: Path) -> Iterator[Bridges]:
    """A new world for each run, so that faults of one run do not affect the next."""
    bridges = new_bridges(tmp_path, new_redis(), guard)
    try:
        bridges.start()
        watch(bridges.database_url)
        yield bridges
    finally:
        bridges.stop()


@pytest.fixture
def rng() -> random.Random:
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().getrandbits(32))
    print(f"CHAOS_SEED={seed}")  # noqa: T201 - pytest shows it where a test fails
    return random.Random(seed)


@pytest.mark.nightly
def test_a_few_hundred_messages_pass_lost_answers_and_killed_bridge_and_database(
    bridges: Bridges, rng: random.Random
) -> None:
    outages = Outages(bridges, rng, scale=0.1)
    passages = _run(bridges, outages, rng, SHORT_FAULTS, count=SHORT_COUNT, rate_per_second=SHORT_RATE_PER_SECOND)
    _judge(passages)


@pytest.mark.chaos
def test_twenty_thousand_messages_under_every_fault_are_neither_lost_nor_processed_twice(
    bridges: Bridges, rng: random.Random
) -> None:
    outages = Outages(bridges, rng)
    passages = _run(bridges, outages, rng, (), count=COUNT, rate_per_second=RATE_PER_SECOND)
    _judge(passages)
    losses = [each for each in outages.struck if each.name in LOSSES]
    assert passages.only_stores_had(losses), "the live path lost nothing: the faults did not strike"
    takeovers = [each.takeover_seconds for each in outages.struck if each.name in ("bridge killed", "database killed")]
    assert max(seconds for seconds in takeovers if seconds is not None) <= TAKEOVER_SECONDS


def _run(
    bridges: Bridges, outages: Outages, rng: random.Random, faults: tuple[str, ...], *, count: int, rate_per_second: int
) -> Passages:
    """Send messages at an even rate until there are enough and every fault has struck."""
    traffic = Traffic(list(bridges.urls.values()), random.Random(rng.random()), rate_per_second)
    traffic.register()
    wait_until(lambda: so_far(bridges.database_url)[:2] == (1, 0), what="the phone is registered")
    lag, started = Lag(bridges.database_url), time.monotonic()
    with _sampled(lag), ThreadPoolExecutor(1) as pool:
        striking = pool.submit(outages.strike, *faults)
        while len(traffic.sent_at) < count or not striking.done():
            traffic.send_wave()
            waves = len(traffic.sent_at) * WAVES_PER_SECOND / rate_per_second
            time.sleep(max(0.0, started + waves / WAVES_PER_SECOND - time.monotonic()))
        striking.result()
        sending_seconds = time.monotonic() - started
        _wait_until_over(bridges, traffic)
    _judge_lag_at_rest(bridges)
    passages = collect(bridges.database_url, traffic.sent_at)
    rate = len(traffic.sent_at) / sending_seconds
    Console(width=120).print(f"{rate:.0f} messages per second for {sending_seconds:.0f} s, {traffic.refused} refusals")
    show(passages, outages.struck, lag, _archived(bridges))
    assert sum(passages.dead_letters.values()) == traffic.nonsense
    return passages


def _judge(passages: Passages) -> None:
    assert not passages.lost
    assert not passages.doubled
    assert not passages.unprocessed
    assert not passages.unanswered


def _judge_lag_at_rest(bridges: Bridges) -> None:
    """Sample the lag until it is small. A store may still be rate-limited for a minute; once it is read again, the lag
    stays small.
    """
    at_rest = Lag(bridges.database_url)
    wait_until(lambda: at_rest.seconds() <= LAG_SECONDS, seconds=OVER_SECONDS, what="the stores are caught up with")
    with _sampled(at_rest):
        time.sleep(REST_SECONDS)
    worst = max(lag for _, lag in at_rest.samples)
    Console(width=120).print(f"watermark at most {worst:.1f} s behind, for {REST_SECONDS} s at rest")
    assert worst <= LAG_SECONDS


def _wait_until_over(bridges: Bridges, traffic: Traffic) -> None:
    """Wait until every message is in the inbox and decided, or a dead letter. Missing messages are judged
    afterwards.
    """
    deadline = time.monotonic() + OVER_SECONDS
    while time.monotonic() < deadline:
        known, undecided, dead = so_far(bridges.database_url)
        # The registration is one more. One reply in 5000 is for a key that shares our own content topic, so it comes in
        # as well.
        if known > len(traffic.sent_at) and (undecided, dead) == (0, traffic.nonsense):
            return
        time.sleep(0.5)


@contextmanager
def _sampled(lag: Lag) -> Iterator[None]:
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(1):
            lag.sample()

    thread = threading.Thread(target=run, name="lag")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _archived(bridges: Bridges) -> set[bytes]:
    """Return the hashes of all messages that the stores have, taken together."""
    found: set[bytes] = set()
    for name in NODES:
        with closing(sqlite3.connect(bridges.fleet.folder / f"{name}.sqlite3")) as store:
            found |= {row[0] for row in store.execute("SELECT message_hash FROM message")}
    return found
