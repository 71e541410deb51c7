"""Delivery under faults: every notification ends in one state, none is lost, and every duplicate push is explained.

`make chaos` runs it; CHAOS_COUNT makes it shorter. The ground truth is the record of the fakes of Apple and Google
behind the real gorush.
"""

import os
import time
from collections.abc import Collection, Sequence

import pytest

from notifications.models import Notification
from notifications.rules.policy import WORKER_LOST
from tests.chaos.faults import WORKER_ENDS, Storm, storm
from tests.chaos.stack import Stack
from tests.chaos.stories import Story, collect, say, show, wait_until_over
from tests.chaos.targets import Target, send_steadily, targets_of
from tests.flows.load import wait_until_done
from tests.rig.network import Network
from tests.rig.server import wait_until

pytestmark = pytest.mark.chaos

COUNT = int(os.environ.get("CHAOS_COUNT", "10000"))
MAX_WAITING = 500
RATE_PER_SECOND = 100
CLIENTS_WAIT_SECONDS = 3
# Number of phones by fate: a hundred in all, 30 of them with trouble.
FATES = {
    "": 70,
    "flaky1-": 6,
    "flaky2-": 6,
    "slow300-": 5,
    "slow7000-": 4,  # longer than the server waits: a timeout, although Apple and Google accept the push
    "busy-": 3,
    "internal-": 2,
    "html-": 1,
    "dead-": 2,
    "expired-": 1,
}
# Possible ends of a notification that only its phone's fate decides about.
ENDS = {
    "": {"delivered"},
    "flaky1-": {"delivered"},
    "flaky2-": {"delivered"},
    "slow300-": {"delivered"},
    "slow7000-": {"unconfirmed"},
    "busy-": {"expired"},
    "internal-": {"expired"},
    "html-": {"expired"},
    "dead-": {"dead_token", "refused"},
    "expired-": {"dead_token", "refused"},
}
REFUSED = {"busy-", "internal-", "html-"}  # every time
DEAD = {"dead-", "expired-"}
ENDLESS = REFUSED | {"slow7000-"}  # every attempt fails
OUTAGE_SECONDS = 60
CATCH_UP_SECONDS = 60
# Seconds after a worker was killed in which replies may be late: a new worker starts and finds the open rows.
INTAKE_SECONDS = 15
# Share of all notifications, without those to phones that always time out.
MAX_DOUBLED = 0.05


def test_ten_thousand_notifications_under_faults_end_in_one_state_each_and_none_is_lost(
    stack: Stack, network: Network
) -> None:
    targets = targets_of(network, FATES)
    with storm(stack) as blowing:
        fates = send_steadily(
            network, targets, seconds=COUNT / RATE_PER_SECOND, per_second=RATE_PER_SECOND, max_waiting=MAX_WAITING
        )
    wait_until_over(network, fates, [message_id for message_id, fate in fates.items() if fate in ENDLESS])
    _let_a_day_pass(network)
    stories = collect(network, fates)
    show(f"{COUNT} notifications, {len(blowing.struck)} faults", stories.values())
    _judge(stories.values())
    _judge_doubles(stories.values(), blowing)
    _judge_phones(stories.values())
    _judge_replies(stories.values(), blowing)
    _judge_logs(stack, targets)


def _judge(stories: Collection[Story]) -> None:
    for story in stories:
        assert story.state == "refused" or Notification.State(story.state).is_terminal  # refused: it has no row
        assert story.state in ENDS[story.fate], story
    reachable = [s for s in stories if s.fate not in REFUSED | DEAD]
    refused = [s for s in stories if s.fate in REFUSED | DEAD]
    doubled = [s for s in stories if s.is_doubled]
    unexplained = [s for s in doubled if len(s.accepted) > s.explained_pushes or len(s.collapse_ids) > 1]
    say(f"lost: {sum(s.is_lost for s in reachable)} of {len(reachable)}")
    say(f"pushed more than once: {len(doubled)}; unexplained, or with several collapse ids: {len(unexplained)}")
    assert not [s for s in reachable if s.is_lost]
    assert not unexplained
    assert not [s for s in refused if s.accepted]


def _judge_doubles(stories: Collection[Story], blowing: Storm) -> None:
    """Few notifications are pushed twice. A killed worker leaves only its attempts under way ambiguous."""
    lost = sum(story.ambiguities.count(WORKER_LOST) for story in stories)
    doubled = [story for story in stories if story.is_doubled and story.fate != "slow7000-"]
    say(f"attempts lost with a worker: {lost}; under way when it was killed: {blowing.held_at_kills}")
    say(f"pushed more than once, but for phones that always time out: {len(doubled)} of {len(stories)}")
    assert lost <= len(blowing.held)
    assert len(doubled) <= MAX_DOUBLED * len(stories)


def _judge_phones(stories: Collection[Story]) -> None:
    """Dead tokens are disabled, and no others. Refused requests have no route."""
    assert {s.route_state for s in stories if s.state == "dead_token"} == {"disabled"}
    assert {s.route_state for s in stories if s.fate not in DEAD} == {"active"}


def _judge_replies(stories: Collection[Story], blowing: Storm) -> None:
    """Each request has one reply. Replies are late to requests that came while no worker was there. On a busy machine
    others are late, too, so they are only counted here, and judged in the run without killed workers.
    """
    kills = [at for at, fault in blowing.struck if fault in WORKER_ENDS]
    late = [s for s in stories if s.reply_seconds > CLIENTS_WAIT_SECONDS]
    unexplained = [s for s in late if not any(-CLIENTS_WAIT_SECONDS < s.sent_at - at < INTAKE_SECONDS for at in kills)]
    say(f"replies later than {CLIENTS_WAIT_SECONDS} s: {len(late)}, without a killed worker: {len(unexplained)}")
    assert all(s.replied_at is not None for s in stories)


def _judge_logs(stack: Stack, targets: Sequence[Target]) -> None:
    for name, text in stack.own_logs().items():
        assert not [target.fate for target in targets if target.device_token in text], name


def test_a_minute_without_gorush_is_caught_up_within_a_minute_and_every_reply_is_in_time(
    stack: Stack, network: Network
) -> None:
    targets = targets_of(network, {"": 20})
    fates = send_steadily(network, targets, seconds=5, per_second=RATE_PER_SECOND)
    stack.stop_gorush(0)
    stack.kill_gorush(1)
    fates |= send_steadily(network, targets, seconds=OUTAGE_SECONDS, per_second=RATE_PER_SECOND)
    stack.start_gorush(0, 1)
    back_at = time.time()
    fates |= send_steadily(network, targets, seconds=5, per_second=RATE_PER_SECOND)
    wait_until_over(network, fates)
    stories = collect(network, fates).values()
    show(f"{len(fates)} notifications, a minute without gorush", stories)
    _judge(stories)
    waited = [s for s in stories if s.known_at < back_at]  # on a busy machine, other requests are not read yet
    last = max(s.finished_at for s in waited) - back_at
    slowest, longest = max(s.answer_seconds for s in stories), max(s.reply_seconds for s in stories)
    say(f"{len(waited)} waited; all of them delivered {last:.0f} s after gorush came back")
    say(f"slowest answer after {slowest:.2f} s; longest way from question to reply {longest:.2f} s")
    assert {s.state for s in stories} == {"delivered"}
    # Attempts that the killed gorush had under way are ambiguous; everything else was pushed once.
    assert not [s for s in stories if s.is_doubled and not s.ambiguities]
    assert last <= CATCH_UP_SECONDS
    assert slowest <= CLIENTS_WAIT_SECONDS


def _let_a_day_pass(network: Network) -> None:
    """Let the notifications expire whose attempts all failed."""
    past = """
        UPDATE notifications_notification SET expires_at = now(), next_attempt_at = now()
        WHERE state IN ('retrying', 'ambiguous') RETURNING 1
    """
    wait_until(lambda: not network.rows(past), seconds=60, pause_seconds=5, what="all retries have ended")
    wait_until_done(network, seconds=60)
