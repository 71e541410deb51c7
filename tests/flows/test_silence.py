"""Answers about pushes that succeed without an attempt, from the envelope to the reply: their time tells nothing.

Everything between is real. The gateway answers when a test says so.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import pytest
from django.conf import LazySettings
from django.utils import timezone

from kit.buckets.bucket import BucketLimits, Limit
from kit.buckets.shared import SharedBuckets
from notifications.acceptance import acceptance
from notifications.messages import AppKey, PushNotification, ReportError
from notifications.models import NotificationRequest
from notifications.queues import halts
from notifications.reports import GRACE
from registrations.messages import TokenType
from tests.rig.conversation import CLIENT, OUTSIDER, anybody, push, registration, replies_to, request, say
from tests.rig.delivering import Gate, Process, RecordingGateway
from tests.rig.rows import firebase_token
from waku_bridge.codec.keys import Identity
from waku_bridge.messages import PushResponse, WakuMessage
from waku_bridge.models import OutboundReply

pytestmark = pytest.mark.django_db
BLOCKED, CHAT, MUTED = b"b" * 64, b"c" * 64, b"m" * 64
KNOWN = b"a message that was delivered"
APP = AppKey(TokenType.FIREBASE, "")
numbers = count(1)


def phone_of(user: Identity) -> PushNotification:
    return push(user, chat_id=CHAT)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    """Return a worker process that has just started. Its gateway is closed. The users' phones are proven."""
    monkeypatch.setattr(acceptance, "own_buckets", lambda buckets=SharedBuckets(): buckets)  # noqa: B008
    known = Process(RecordingGateway())
    users = [registration(user, device_token=firebase_token(), **rules) for user, rules in RULES.items()]
    say(*users, process=known)
    say(request(*map(phone_of, RULES), signer=anybody(), message_id=KNOWN), process=known)
    known.process_backlog()
    return Process(Gate())


RULES: dict[Identity, dict[str, Any]] = {
    CLIENT: {"blocked_chat_list": (BLOCKED,), "muted_chat_list": (MUTED,)},
    OUTSIDER: {},
}


# Requests whose pushes succeed without an attempt, and one whose push is wanted. No two requests are the same.
def blocked(sender: Identity) -> WakuMessage:
    return request(push(author=BLOCKED, message=anything()), signer=sender, message_id=sender.pub33)


def muted(sender: Identity) -> WakuMessage:
    return request(push(chat_id=MUTED, message=anything()), signer=sender, message_id=sender.pub33)


def repeated(sender: Identity) -> WakuMessage:
    return request(push(message=anything()), signer=sender, message_id=KNOWN)


def wanted(sender: Identity, user: Identity = CLIENT) -> WakuMessage:
    return request(phone_of(user), signer=sender, message_id=anything())


def anything() -> bytes:
    return b"message %d" % next(numbers)


Kind = Callable[[Identity], WakuMessage]
KINDS = [blocked, muted, repeated]


def answers(sender: Identity) -> list[list[int]]:
    bodies = [reply.body for reply in replies_to(sender)]
    return [[report.error for report in body.reports] for body in bodies if isinstance(body, PushResponse)]


def work(process: Process, *, batches: int = 5) -> None:
    """Process some batches, each when something has happened."""
    for _ in range(batches):
        process.process_batch()
        process.wait()


def gateway_of(process: Process) -> Gate:
    assert isinstance(process.gateway, Gate)
    return process.gateway


@pytest.mark.parametrize("were_quick", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_push_without_an_attempt_is_answered_when_one_with_an_attempt_would_be(
    kind: Kind, were_quick: bool, process: Process, settings: LazySettings
) -> None:
    """Also where earlier attempts were quick, and the queue hangs now."""
    settings.REPLY_DEADLINE_SECONDS = 60
    if were_quick:
        gateway_of(process).is_open.set()
        say(wanted(anybody(), OUTSIDER), process=process)
        process.process_backlog()
        gateway_of(process).is_open.clear()
    control, suspect, before = anybody(), anybody(), len(gateway_of(process).pushes)
    say(wanted(control, OUTSIDER), process=process)
    say(kind(suspect), process=process)
    work(process)
    assert (answers(control), answers(suspect)) == ([], [])
    gateway_of(process).is_open.set()
    process.process_until(lambda: answers(suspect))
    assert answers(control) == answers(suspect) == [[ReportError.NONE]]
    assert len(gateway_of(process).pushes) == before + 1


def limits(tokens: int) -> BucketLimits:
    return Limit(tokens, 1e6), Limit(tokens, 1e6)


@pytest.mark.parametrize("earlier", [0, 1])
def test_a_push_beyond_the_limit_of_its_address_is_answered_as_one_within(
    earlier: int, process: Process, settings: LazySettings
) -> None:
    """The first is stored as a wake-up, and the next one is merged into it."""
    settings.REPLY_DEADLINE_SECONDS, settings.ROUTE_LIMITS = 60, limits(2)
    gateway_of(process).is_open.set()
    say(*(wanted(anybody()) for _ in range(1 + earlier)), process=process)
    process.process_backlog()
    gateway_of(process).is_open.clear()
    control, suspect = anybody(), anybody()
    fresh = Process(gateway_of(process))  # only the control's push tells it how long one takes
    say(wanted(control, OUTSIDER), process=fresh)
    say(wanted(suspect), process=fresh)
    work(fresh)
    assert (answers(control), answers(suspect)) == ([], [])
    gateway_of(process).is_open.set()
    fresh.process_until(lambda: answers(suspect))
    assert answers(control) == answers(suspect) == [[ReportError.NONE]]


@pytest.mark.parametrize("obstacle", ["halted", "without capacity"])
@pytest.mark.parametrize("kind", KINDS)
def test_in_a_queue_that_sends_nothing_all_are_answered_together_at_the_deadline(
    kind: Kind, obstacle: str, process: Process, settings: LazySettings
) -> None:
    settings.REPLY_DEADLINE_SECONDS = 0.8
    narrow, control, suspect = Process(gateway_of(process), limit=1), anybody(), anybody()
    if obstacle == "halted":
        halts.begin(halts.Kind.PAUSED, APP, by="operator", reason="test", now=timezone.now())
    say(wanted(anybody(), OUTSIDER), wanted(control, OUTSIDER), kind(suspect), process=narrow)
    narrow.process_until(lambda: answers(control) and answers(suspect))
    assert answers(control) == answers(suspect) == [[ReportError.NONE]]
    assert answered_at(3) == {due_at()}
    gateway_of(process).is_open.set()


@pytest.mark.parametrize("kind", [wanted, *KINDS])
def test_where_a_push_waits_for_others_of_its_queue_to_end_no_answer_waits_for_the_deadline(
    kind: Kind, process: Process, settings: LazySettings
) -> None:
    """A sender can fill a queue with pushes to phones of its own."""
    settings.REPLY_DEADLINE_SECONDS = 60
    narrow, suspect = Process(gateway_of(process), limit=2), anybody()
    say(*(wanted(anybody(), OUTSIDER) for _ in range(5)), kind(suspect), process=narrow)
    work(narrow)
    assert answers(suspect) == []
    gateway_of(process).is_open.set()
    narrow.process_until(lambda: answers(suspect))
    assert answers(suspect) == [[ReportError.NONE]]


def due_at() -> datetime:
    return NotificationRequest.objects.latest("pk").reply_due_at


def answered_at(last: int) -> set[datetime]:
    """Return when the last replies were made: those of one batch at the same time, and none before it is due."""
    made = set(OutboundReply.objects.order_by("-pk").values_list("created_at", flat=True)[:last])
    return {due_at()} if len(made) == 1 and made.pop() >= due_at() else made


@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_survives_its_worker_and_is_given_once(kind: Kind, process: Process) -> None:
    suspect, dead, other = anybody(), process, Process(Gate())
    say(wanted(anybody(), OUTSIDER), kind(suspect), process=dead)
    other.process_batch(now=due_at() + GRACE - timedelta(milliseconds=1))
    assert answers(suspect) == []
    other.process_batch(now=due_at() + GRACE)
    assert answers(suspect) == [[ReportError.NONE]]
    gateway_of(dead).is_open.set()  # it was only slow
    dead.process_backlog()
    assert answers(suspect) == [[ReportError.NONE]]


def test_a_process_that_has_just_started_knows_how_long_attempts_take(process: Process, settings: LazySettings) -> None:
    settings.REPLY_DEADLINE_SECONDS = 60
    suspect = anybody()
    say(blocked(suspect), process=process)
    process.process_until(lambda: answers(suspect))
    assert answers(suspect) == [[ReportError.NONE]]


def test_one_push_without_an_attempt_keeps_the_answer_about_all_of_its_request(
    process: Process, settings: LazySettings
) -> None:
    """Its own phone's queue runs, and the other's is halted."""
    settings.REPLY_DEADLINE_SECONDS = 0.8
    gateway_of(process).is_open.set()
    user, suspect = anybody(), anybody()
    apple: dict[str, Any] = {"token_type": TokenType.APN, "app_topic": "im.status", "device_token": "ab" * 32}
    say(registration(user, **apple), process=process)
    halts.begin(halts.Kind.PAUSED, APP, by="operator", reason="test", now=timezone.now())
    say(request(phone_of(user), push(author=BLOCKED), signer=suspect), process=process)
    process.process_until(lambda: answers(suspect))
    assert answers(suspect) == [[ReportError.NONE, ReportError.NONE]]
    assert answered_at(1) == {due_at()}
    assert len(gateway_of(process).pushes) == 1


@pytest.mark.parametrize("kind", [wanted, *KINDS])
def test_pushes_without_an_attempt_count_for_the_limit_of_their_sender(
    kind: Kind, process: Process, settings: LazySettings
) -> None:
    """It counts on phones of its own. Pushes that the other address merges are charged as well."""
    settings.SENDER_LIMITS, settings.ROUTE_LIMITS = limits(8), limits(4)
    gateway_of(process).is_open.set()
    sender, own = anybody(), [anybody() for _ in range(4)]
    say(*(registration(user, device_token=firebase_token()) for user in own), process=process)
    say(*(kind(sender) for _ in range(6)), process=process)
    process.process_backlog()
    before = len(gateway_of(process).pushes)
    say(*(wanted(sender, user) for user in own), process=process)
    process.process_backlog()
    assert len(gateway_of(process).pushes) - before == 2


def test_unwanted_pushes_take_nothing_from_the_limit_of_their_address(process: Process, settings: LazySettings) -> None:
    settings.ROUTE_LIMITS = limits(2)
    gateway_of(process).is_open.set()
    say(*(muted(anybody()) for _ in range(5)), wanted(anybody()), process=process)
    process.process_backlog()
    assert [each.chat_id for each in gateway_of(process).pushes] == [CHAT]
