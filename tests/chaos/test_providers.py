"""Outages behind gorush: no push is given up, doubles have one collapse id, replies are in time, and others are quick.

`make chaos ARGS="-k outage"` runs them, each for five minutes; CHAOS_OUTAGE_SECONDS makes them shorter. The real gorush
says what it says at a TLS alert, a GOAWAY and the like. There are two workers of batches, of which one has a gorush of
its own. Whether others are as quick as usual can be seen on a machine that does nothing else.
"""

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import pytest

from tests.chaos.conftest import NewWorld
from tests.chaos.world import GORUSHES, OTHER_GORUSH, OTHER_WORKER, World
from tests.rig.ledger import Story, at_share, collect, judge, print_table, say, wait_until_over
from tests.rig.load import send_steadily, targets_of
from tests.rig.peers import ask, break_peer, mend_peer

pytestmark = pytest.mark.chaos

OUTAGE_SECONDS = float(os.environ.get("CHAOS_OUTAGE_SECONDS") or 300)
PHONES, SENDERS, RATE_PER_SECOND = 200, 10, 20
WARM_UP_SECONDS, BEFORE_SECONDS, RECOVERY_SECONDS = 10.0, 60.0, 60.0
MAX_SLOWDOWN = 1.2
PLATFORMS = {"android", "ios"}


class Outage(NamedTuple):
    """An outage during the block ``of`` a world. ``spared`` are the platforms that do not take part in it."""

    of: Callable[[World], AbstractContextManager[None]]
    spared: Collection[str]


@contextmanager
def _broken(world: World, **ways: str) -> Iterator[None]:
    break_peer(world.servers.fakes_url, **ways)
    yield
    mend_peer(world.servers.fakes_url)


@contextmanager
def _without(world: World, *gorushes: Sequence[str]) -> Iterator[None]:
    """Kill the gorushes of the worker that sends most, as the first to listen does, or of all in ``gorushes``."""
    own = max(gorushes, key=lambda names: sum(_pushes_through(world, name) for name in names))
    world.fleet.kill(*own)
    yield
    world.start(*own)


def _pushes_through(world: World, name: str) -> int:
    return int(ask(world.urls[name], "GET", "/api/stat/app").body["total_count"])


OUTAGES: Mapping[str, Outage] = {
    "tls_alert_of_apple": Outage(partial(_broken, apple="alert"), {"android"}),
    "goaway_of_apple": Outage(partial(_broken, apple="goaway"), {"android"}),
    "eof_of_apple": Outage(partial(_broken, apple="eof"), {"android"}),
    "reset_of_google": Outage(partial(_broken, google="reset"), {"ios"}),
    "no_such_host_as_apple": Outage(partial(_broken, apple="no_host"), {"android"}),
    "one_worker_cut_off": Outage(lambda world: _without(world, GORUSHES, [OTHER_GORUSH]), PLATFORMS),
    "no_gorush": Outage(lambda world: _without(world, [*GORUSHES, OTHER_GORUSH]), ()),
}


class Span(NamedTuple):
    """Time of a run, in Unix seconds."""

    began_at: float
    ended_at: float

    def seconds_of(self, stories: Collection[Story], platform: str) -> list[float]:
        """Return how long pushes took from the sender to the provider, quickest first."""
        return sorted(
            story.accepted[0]["received_ms"] / 1000 - story.sent_at
            for story in stories
            if self.began_at <= story.sent_at < self.ended_at and {p["platform"] for p in story.accepted} == {platform}
        )


@pytest.fixture
def world(new_world: NewWorld) -> Iterator[World]:
    # The Firebase SDK repeats for seven seconds.
    with new_world(GORUSH_TIMEOUT_SECONDS="20") as world:
        world.start(OTHER_GORUSH, OTHER_WORKER)
        yield world


@pytest.mark.parametrize("outage", OUTAGES.values(), ids=OUTAGES)
def test_an_outage_of_a_provider_ends_no_push_and_leaves_the_others_as_quick(world: World, outage: Outage) -> None:
    with world.network() as network:
        targets, sent, times = targets_of(network, {"": PHONES}, senders=SENDERS), list[bytes](), list[float]()

        def send(seconds: float) -> None:
            is_enough = partial(float.__le__, seconds * RATE_PER_SECOND)
            sent.extend(send_steadily(network.publish, targets, per_second=RATE_PER_SECOND, is_enough=is_enough))
            times.append(time.time())

        send(WARM_UP_SECONDS)
        send(BEFORE_SECONDS)
        with outage.of(world):
            send(OUTAGE_SECONDS)
        send(RECOVERY_SECONDS)
        wait_until_over(network, sent)
        stories = collect(network, sent)
    before, during, _ = (Span(*pair) for pair in pairwise(times))
    _show_times(stories, {"before": before, "outage": during})
    judge(stories, is_excused=lambda _: False)
    last = max(s.finished_at for s in stories if s.sent_at < during.ended_at) - during.ended_at
    say(f"the last one delivered {last:.1f} s after the end of the outage")
    assert last <= RECOVERY_SECONDS
    for platform in sorted(outage.spared):
        usual, p99 = (at_share(span.seconds_of(stories, platform), 0.99) for span in (before, during))
        assert p99 <= MAX_SLOWDOWN * usual, platform


def _show_times(stories: Collection[Story], spans: Mapping[str, Span]) -> None:
    shares = (0.5, 0.9, 0.99, 1)
    rows = [
        (platform, name, len(took), *(f"{at_share(took, share):.3f}" for share in shares))
        for platform in sorted(PLATFORMS)
        for name, span in spans.items()
        for took in [span.seconds_of(stories, platform)]
    ]
    print_table("Seconds to the provider", ("platform", "sent", "count", "p50", "p90", "p99", "max"), rows)
