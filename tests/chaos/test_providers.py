"""Outages behind gorush: no push is given up, doubles have one collapse id, and other pushes are as quick as usual.

`make chaos ARGS="-k outage_of_a_provider"` runs them, each for five minutes; CHAOS_OUTAGE_SECONDS makes them shorter.
The real gorush says what it says at a TLS alert, a GOAWAY and the like, and the record of the fakes of Apple and Google
is the ground truth. There are two workers of batches: one has a gorush of its own. Whether others are as quick as usual
can be seen on a machine that does nothing else.
"""

import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import pytest

from tests.chaos.stack import GORUSH, Stack, new_stack
from tests.chaos.stories import Story, collect, say, show
from tests.chaos.tables import at_share, print_table
from tests.chaos.targets import send_steadily, targets_of
from tests.rig.network import OPEN_STATES, Network
from tests.rig.peers import break_peer, mend_peer
from tests.rig.server import NewFleet

pytestmark = pytest.mark.chaos

OUTAGE_SECONDS = float(os.environ.get("CHAOS_OUTAGE_SECONDS") or 300)
PHONES, SENDERS, RATE_PER_SECOND = 200, 10, 20
WARM_UP_SECONDS = 10.0
BEFORE_SECONDS = 60.0
RECOVERY_SECONDS = 60.0
MAX_SLOWDOWN = 1.2
# The Firebase SDK repeats for seven seconds.
GORUSH_TIMEOUT_SECONDS = "20"
# The gorush of the second worker.
APART = 2
OPEN = "SELECT count(*) FROM notifications_notification WHERE state = ANY(%s)"
ANSWERS = "SELECT outcome, code, count(*) FROM notifications_attempt GROUP BY 1, 2 ORDER BY 3 DESC"
HALTS = """
    SELECT kind, coalesce(token_type::text, gateway), since, ended_at FROM notifications_endedhalt
    UNION ALL SELECT kind, coalesce(token_type::text, gateway), since, NULL FROM notifications_halt ORDER BY since
"""


@dataclass(frozen=True, slots=True)
class Outage:
    """An outage during the block ``of`` a stack. ``spared`` are the platforms that do not take part in it."""

    of: Callable[[Stack], AbstractContextManager[None]]
    spared: Collection[str]


@contextmanager
def _broken(stack: Stack, **ways: str) -> Iterator[None]:
    break_peer(stack.servers.fakes_url, **ways)
    yield
    mend_peer(stack.servers.fakes_url)


@contextmanager
def _cut_off(stack: Stack) -> Iterator[None]:
    """Cut the worker off that sends most, as the first to listen does. Nothing listens at its gorushes then."""
    own = max(([0, 1], [APART]), key=lambda numbers: sum(map(stack.pushes_through, numbers)))
    stack.kill_gorush(*own)
    yield
    stack.start_gorush(*own)


OUTAGES = {
    "tls_alert_of_apple": Outage(partial(_broken, apple="alert"), {"android"}),
    "goaway_of_apple": Outage(partial(_broken, apple="goaway"), {"android"}),
    "eof_of_apple": Outage(partial(_broken, apple="eof"), {"android"}),
    "reset_of_google": Outage(partial(_broken, google="reset"), {"ios"}),
    "no_such_host_as_apple": Outage(partial(_broken, apple="no_host"), {"android"}),
    "one_worker_cut_off": Outage(_cut_off, {"android", "ios"}),
}


class Span(NamedTuple):
    """Time of a run, in Unix seconds."""

    began_at: float
    ended_at: float

    def minutes(self) -> Iterator["Span"]:
        began_at = self.began_at
        while began_at < self.ended_at:
            yield Span(began_at, min(began_at + 60, self.ended_at))
            began_at += 60

    def seconds_of(self, stories: Collection[Story], platform: str) -> list[float]:
        """Return how long pushes took from the sender to the provider, quickest first."""
        return sorted(
            story.accepted[0]["received_ms"] / 1000 - story.sent_at
            for story in stories
            if self.began_at <= story.sent_at < self.ended_at and {p["platform"] for p in story.accepted} == {platform}
        )


@pytest.fixture
def idle_stack(require_or_skip: Callable[[bool, str], None], new_fleet: NewFleet) -> Iterator[Stack]:
    require_or_skip(GORUSH.exists(), "there is no real gorush: `make peers` builds it")
    stack = new_stack(new_fleet, "outage", apart=1, GORUSH_TIMEOUT_SECONDS=GORUSH_TIMEOUT_SECONDS)
    yield stack
    stack.fleet.kill(*stack.fleet.running)


@pytest.mark.parametrize("outage", OUTAGES.values(), ids=OUTAGES)
def test_an_outage_of_a_provider_ends_no_push_and_leaves_the_others_as_quick(
    stack: Stack, network: Network, outage: Outage
) -> None:
    stack.start_worker_behind(APART)
    targets = targets_of(network, {"": PHONES}, senders=SENDERS)
    send = partial(send_steadily, network, targets, per_second=RATE_PER_SECOND)
    fates = send(seconds=WARM_UP_SECONDS)
    times = [time.time()]
    fates |= send(seconds=BEFORE_SECONDS)
    times.append(time.time())
    with outage.of(stack):
        fates |= send(seconds=OUTAGE_SECONDS)
    times.append(time.time())
    fates |= send(seconds=RECOVERY_SECONDS)
    _wait_until_over(network)
    stories = collect(network, fates).values()
    before, during = (Span(*pair) for pair in pairwise(times))
    show(f"{len(fates)} notifications, {OUTAGE_SECONDS:g} s of an outage", stories)
    _show_times(network, stories, before, during)
    _judge(stories, during)
    for platform in sorted(outage.spared):
        spans = (before, during)
        usual, p99 = (at_share(span.seconds_of(stories, platform), 0.99) for span in spans)
        assert p99 <= MAX_SLOWDOWN * usual, platform


def _wait_until_over(network: Network) -> None:
    """Wait as long again as everything may take, so that the figures of a failure are complete."""
    deadline = time.monotonic() + RECOVERY_SECONDS
    while network.rows(OPEN, list(OPEN_STATES)) != [(0,)] and time.monotonic() < deadline:
        time.sleep(1)


def _judge(stories: Collection[Story], during: Span) -> None:
    given_up = [s for s in stories if s.state not in {"delivered", *OPEN_STATES}]
    lost = [s for s in stories if s.is_lost]
    doubled = [s for s in stories if s.is_doubled]
    split = [s for s in doubled if len(s.collapse_ids) > 1 or "" in s.collapse_ids]
    waited = [s for s in stories if s.sent_at < during.ended_at]
    still_open = [s for s in waited if s.state in OPEN_STATES]
    last = max(s.finished_at for s in waited if s.state == "delivered") - during.ended_at
    say(f"given up: {len(given_up)}; never at a provider: {len(lost)}; still open: {len(still_open)}")
    say(f"doubled: {len(doubled)}, of them without one collapse id: {len(split)}")
    say(f"the last one delivered {last:.1f} s after the end of the outage")
    assert not given_up
    assert not split
    assert not still_open
    assert not lost
    assert last <= RECOVERY_SECONDS


def _show_times(network: Network, stories: Collection[Story], before: Span, during: Span) -> None:
    shares = (0.5, 0.9, 0.99, 1)
    spans = {"before": before, "outage": during}
    spans |= {f"its minute {number}": span for number, span in enumerate(during.minutes(), 1)}
    rows = [
        (platform, name, len(took), *(f"{at_share(took, share):.3f}" for share in shares))
        for platform in ("android", "ios")
        for name, span in spans.items()
        for took in [span.seconds_of(stories, platform)]
    ]
    print_table("Seconds to the provider", ("platform", "sent", "count", "p50", "p90", "p99", "max"), rows)
    print_table("Attempts", ("outcome", "code", "count"), network.rows(ANSWERS))
    halts = [
        (kind, what, *(f"{at.timestamp() - during.began_at:.1f}" if at else "" for at in times))
        for kind, what, *times in network.rows(HALTS)
    ]
    print_table("Halts", ("kind", "of", "began, s after the outage began", "ended"), halts)
    say(f"load average: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
