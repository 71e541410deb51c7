"""Delivery under faults: every notification ends in one state, none is lost, and what goes out twice is explained.

`make chaos`; CHAOS_COUNT makes it shorter. The ground truth is what the fakes of Apple and Google received
from the real gorush.
"""

import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pytest
from rich.console import Console

from notifications.models import Notification
from notifications.policy import WORKER_LOST
from tests.chaos.faults import WORKER_ENDS, Storm, storm
from tests.chaos.stack import Stack
from tests.chaos.stories import Story, collect, show
from tests.flows.fleet import wait_until
from tests.flows.load import wait_until_done
from tests.flows.network import Network, Sender, android, iphone, new_sender
from waku_bridge.client import Destination
from waku_bridge.messages import WakuMessage

pytestmark = pytest.mark.chaos

COUNT = int(os.environ.get("CHAOS_COUNT", "10000"))
MAX_WAITING = 500
RATE_PER_SECOND = 100
CLIENTS_WAIT_SECONDS = 3
# How many phones have which fate; together a hundred, and 30 of them trouble.
FATES = {
    "": 70,
    "flaky1-": 6,
    "flaky2-": 6,
    "slow300-": 5,
    "slow7000-": 4,  # longer than we wait: a time-out, and Apple and Google took it all the same
    "busy-": 3,
    "internal-": 2,
    "html-": 1,
    "dead-": 2,
    "expired-": 1,
}
# What becomes of a notification that only its phone's fate decides about.
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
OUTAGE_SECONDS = 60
CATCH_UP_SECONDS = 60
OVER_SECONDS = 400
OPEN = """
    SELECT (SELECT count(*) FROM notifications_notification AS notification
            JOIN notifications_notificationrequest AS request ON request.id = notification.request_id
            WHERE notification.state IN ('pending', 'in_flight', 'retrying', 'ambiguous')
              AND (notification.state <> 'retrying' OR request.message_id <> ALL(%s)))
         + (SELECT count(*) FROM waku_bridge_outboundreply WHERE state = 'pending')
"""
HURRY = """
    UPDATE notifications_notification AS notification SET next_attempt_at = now()
    FROM notifications_notificationrequest AS request
    WHERE request.id = notification.request_id AND notification.state IN ('retrying', 'ambiguous')
      AND notification.next_attempt_at > now() + interval '20 seconds' AND request.message_id <> ALL(%s)
    RETURNING notification.id
"""
# Where something may be stuck.
TABLES = (
    "waku_bridge_inboundenvelope",
    "notifications_notificationrequest",
    "notifications_notification",
    "waku_bridge_outboundreply",
)
# For so long after the worker was killed, replies may be late: another one starts, and finds what was left behind.
INTAKE_SECONDS = 15
# Of all notifications, but for those to phones that always time out.
MAX_DOUBLED = 0.05


@dataclass(frozen=True, slots=True)
class Target:
    """A phone that can be notified, and what Apple or Google do with its token."""

    fate: str
    device_token: str
    sender: Sender
    destinations: tuple[Destination, ...]

    def request(self, message_id: bytes) -> WakuMessage:
        """The message id is also what the phone gets: that makes a push traceable."""
        content = self.sender.one_to_one(message_id)
        return self.sender.request(self.destinations, content, message_id, timestamp_ns=time.time_ns()).message


def _targets(network: Network, fates: Mapping[str, int]) -> list[Target]:
    sender = new_sender()
    targets = []
    for number, fate in enumerate(fate for fate, count in fates.items() for _ in range(count)):
        address = iphone(fate) if number % 2 else android(fate)
        destinations = network.query(sender, network.phone(address))
        targets.append(Target(fate, address.device_token, sender, destinations))
    return targets


def test_ten_thousand_notifications_under_faults_end_in_one_state_each_and_none_is_lost(
    stack: Stack, network: Network
) -> None:
    targets = _targets(network, FATES)
    with storm(stack) as blowing:
        fates = _send_steadily(network, targets, seconds=COUNT / RATE_PER_SECOND, at_most_waiting=MAX_WAITING)
    _wait_until_over(network, fates)
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
        assert Notification.State(story.state).is_terminal
        assert story.state in ENDS[story.fate] or (story.state == "unconfirmed" and story.may_be_left_alone), story
    reachable = [s for s in stories if s.fate not in REFUSED | DEAD]
    refused = [s for s in stories if s.fate in REFUSED | DEAD]
    doubled = [s for s in stories if s.is_doubled]
    unexplained = [s for s in doubled if len(s.accepted) > s.explained_pushes or len(s.collapse_ids) > 1]
    _say(f"lost: {sum(s.is_lost for s in reachable)} of {len(reachable)}")
    _say(f"pushed more than once: {len(doubled)}; unexplained, or with several collapse ids: {len(unexplained)}")
    assert not [s for s in reachable if s.is_lost]
    assert not unexplained
    assert not [s for s in refused if s.accepted]


def _judge_doubles(stories: Collection[Story], blowing: Storm) -> None:
    """Few go out twice. A killed worker leaves in doubt what it had under way, and nothing else."""
    lost = sum(story.doubts.count(WORKER_LOST) for story in stories)
    doubled = [story for story in stories if story.is_doubled and story.fate != "slow7000-"]
    _say(f"attempts lost with a worker: {lost}; under way when it was killed: {blowing.held_at_kills}")
    _say(f"pushed more than once, but for phones that always time out: {len(doubled)} of {len(stories)}")
    assert lost <= len(blowing.held)
    assert len(doubled) <= MAX_DOUBLED * len(stories)


def _judge_phones(stories: Collection[Story]) -> None:
    """Dead tokens are disabled, and no others. What was refused has no route."""
    assert {s.route_state for s in stories if s.state == "dead_token"} == {"disabled"}
    assert {s.route_state for s in stories if s.fate not in DEAD} == {"active"}


def _judge_replies(stories: Collection[Story], blowing: Storm) -> None:
    """Each request has one. Late are those of senders who asked while nobody was there to answer; others only where the
    machine is busy with other things, so that they are counted here, and judged in the run without killed workers.
    """
    kills = [at for at, what in blowing.struck if what in WORKER_ENDS]
    late = [s for s in stories if s.reply_seconds > CLIENTS_WAIT_SECONDS]
    unexplained = [s for s in late if not any(-CLIENTS_WAIT_SECONDS < s.sent_at - at < INTAKE_SECONDS for at in kills)]
    _say(f"replies later than {CLIENTS_WAIT_SECONDS} s: {len(late)}, without a killed worker: {len(unexplained)}")
    assert all(s.replied_at is not None for s in stories)


def _judge_logs(stack: Stack, targets: Sequence[Target]) -> None:
    for name, text in stack.own_logs().items():
        assert not [target.fate for target in targets if target.device_token in text], name


def test_a_minute_without_gorush_is_caught_up_within_a_minute_and_every_reply_is_in_time(
    stack: Stack, network: Network
) -> None:
    targets = _targets(network, {"": 20})
    fates = _send_steadily(network, targets, seconds=5)
    stack.stop_gorush(0)
    stack.kill_gorush(1)
    fates |= _send_steadily(network, targets, seconds=OUTAGE_SECONDS)
    stack.start_gorush(0, 1)
    back_at = time.time()
    fates |= _send_steadily(network, targets, seconds=5)
    _wait_until_over(network, fates)
    stories = collect(network, fates).values()
    show(f"{len(fates)} notifications, a minute without gorush", stories)
    _judge(stories)
    waited = [s for s in stories if s.known_at < back_at]  # on a busy machine, others are still to be looked at
    last = max(s.finished_at for s in waited) - back_at
    slowest, longest = max(s.answer_seconds for s in stories), max(s.reply_seconds for s in stories)
    _say(f"{len(waited)} waited; all of them delivered {last:.0f} s after gorush came back")
    _say(f"slowest answer after {slowest:.2f} s; longest way from question to reply {longest:.2f} s")
    assert {s.state for s in stories} == {"delivered"}
    # What the killed gorush was sending at that moment nobody knows; everything else was pushed once.
    assert not [s for s in stories if s.is_doubled and not s.doubts]
    assert last <= CATCH_UP_SECONDS
    assert slowest <= CLIENTS_WAIT_SECONDS


def _send_steadily(
    network: Network, targets: Sequence[Target], *, seconds: float, at_most_waiting: int = COUNT
) -> dict[bytes, str]:
    """Ten times a second, at RATE_PER_SECOND, to each phone in turn. Returns the fate of each message.

    Slower while more than ``at_most_waiting`` requests were not even looked at, as on a machine busy with other things.
    """
    fates: dict[bytes, str] = {}
    started = time.monotonic()
    for step in range(round(seconds * 10)):
        while len(fates) - _known(network) > at_most_waiting:
            time.sleep(0.5)
        wave = {os.urandom(32): targets[(len(fates) + i) % len(targets)] for i in range(RATE_PER_SECOND // 10)}
        network.publish(*(target.request(message_id) for message_id, target in wave.items()))
        fates |= {message_id: target.fate for message_id, target in wave.items()}
        time.sleep(max(0.0, started + (step + 1) / 10 - time.monotonic()))
    return fates


def _wait_until_over(network: Network, fates: Mapping[bytes, str]) -> None:
    """But for what is refused every time: that would take its time to live. Long pauses are made shorter."""
    refused = [message_id for message_id, fate in fates.items() if fate in REFUSED]

    def is_over() -> bool:
        network.rows(HURRY, refused)
        return network.rows(OPEN, refused) == [(0,)]

    try:
        wait_until(lambda: _known(network) == len(fates), seconds=120, pause_seconds=1, what="all requests are known")
        wait_until(is_over, seconds=OVER_SECONDS, pause_seconds=1, what="all is over")
    except AssertionError:
        for table in TABLES:
            _say((table, network.rows(f"SELECT state, count(*) FROM {table} GROUP BY 1")))
        raise


def _let_a_day_pass(network: Network) -> None:
    """For what was tried and refused all the time."""
    past = (
        "UPDATE notifications_notification SET expires_at = now(), next_attempt_at = now() WHERE state = %s RETURNING 1"
    )
    wait_until(lambda: not network.rows(past, "retrying"), seconds=60, pause_seconds=5, what="all retries have ended")
    wait_until_done(network, seconds=60)


def _known(network: Network) -> int:
    """How many requests were looked at."""
    [(count,)] = network.rows("SELECT count(*) FROM notifications_notificationrequest")
    return int(count)


def _say(what: object) -> None:
    Console(width=140).print(what)
