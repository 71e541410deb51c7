"""Rows and hashes of envelopes that nothing follows from. Anybody can send any number of them."""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from notifications import retention
from notifications.messages import Outcome, ReportError
from notifications.models import DecidedAtOnce, Notification, NotificationRequest, RefusedRequest, RequestDigest
from tests.limits.page import limit
from tests.rig.conversation import EPHEMERAL, OUTSIDER, push, put, registration, replies_to, request, say
from tests.rig.delivering import Process, RecordingGateway
from tests.rig.rows import delete_all
from waku_bridge.inbox.processing import HASHES_PER_HOUR, ROWS_PER_MINUTE
from waku_bridge.messages import WakuMessage
from waku_bridge.models import EnvelopeHash, InboundEnvelope, OutboundReply

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@pytest.fixture
def now() -> datetime:
    return timezone.now()


def garbage(count: int, size_bytes: int = 1) -> list[WakuMessage]:
    """Return messages on the server's own topic that no key opens."""
    began_ns, message = time.time_ns(), registration()
    return [replace(message, payload=b"\x01" * size_bytes, timestamp_ns=began_ns + number) for number in range(count)]


def refused() -> list[list[ReportError]]:
    return [[report.error for report in reply.body.reports] for reply in replies_to(EPHEMERAL)]


def process_all(messages: Sequence[WakuMessage], process: Process, *, now: datetime) -> None:
    for start in range(0, len(messages), 100):
        say(*messages[start : start + 100], now=now, process=process)


def rows() -> int:
    return InboundEnvelope.objects.count()


def hashes() -> int:
    return EnvelopeHash.objects.count()


@limit("dropped envelopes, and those of such requests and repeats: {a_minute} a minute of each reason")
@limit("hashes of unreadable envelopes: {an_hour} an hour")
def test_garbage_leaves_a_sample_of_rows_and_hashes_up_to_a_limit_of_the_hour(
    a_minute: int, an_hour: int, now: datetime
) -> None:
    process = Process(limit=200)
    process_all(garbage(an_hour + 100), process, now=now)
    assert (rows(), hashes()) == (a_minute, an_hour + a_minute)
    assert {(row.state, row.reason, row.payload) for row in InboundEnvelope.objects.all()} == {
        ("dropped", "not_decryptable", None)
    }
    process_all(garbage(an_hour + 100), process, now=now + HOUR)
    assert (rows(), hashes()) == (2 * a_minute, 2 * (an_hour + a_minute))


def test_garbage_whose_hash_is_kept_is_not_opened_again_and_the_rest_once_for_each_copy(now: datetime) -> None:
    messages = garbage(HASHES_PER_HOUR + ROWS_PER_MINUTE + 20)
    process_all(messages, process := Process(), now=now)
    assert len(put(*messages, now=now)) == 20
    process.process_batch(now=now)
    assert (rows(), len(put(*messages, now=now))) == (ROWS_PER_MINUTE, 20)


def test_garbage_of_one_kind_does_not_hide_another_kind_from_operators(now: datetime) -> None:
    process = Process()
    process_all(garbage(3 * ROWS_PER_MINUTE), process, now=now)
    say(request(push(), message_id=b""), now=now, process=process)
    assert InboundEnvelope.objects.filter(reason="no_message_id").count() == 1


def test_nothing_about_a_phone_is_given_up_for_garbage(now: datetime) -> None:
    process = Process(RecordingGateway(Outcome.DELIVERED))
    process_all(garbage(HASHES_PER_HOUR + 100), process, now=now)
    about_phone = [registration(), request(push()), *garbage(10)]
    say(*about_phone, now=now, process=process)
    assert Notification.objects.count() == NotificationRequest.objects.count() == 1
    assert InboundEnvelope.objects.filter(state="processed").count() == 2
    assert len(put(*about_phone, now=now)) == 10


def test_a_request_that_notifies_nobody_leaves_its_hash_and_a_short_row(now: datetime) -> None:
    say(registration(), now=now, process=(process := Process()))
    before = rows()
    messages = [request(push(access_token="wrong"), message_id=b"%d" % n) for n in range(3 * ROWS_PER_MINUTE)]
    messages += [request(push(OUTSIDER), push(OUTSIDER), message_id=b"-%d" % n) for n in range(3 * ROWS_PER_MINUTE)]
    process_all(messages, process, now=now)
    wrong, unknown = [ReportError.WRONG_TOKEN], [ReportError.NOT_REGISTERED] * 2
    assert refused() == [wrong] * 3 * ROWS_PER_MINUTE + [unknown] * 3 * ROWS_PER_MINUTE
    for model in (NotificationRequest, RequestDigest, DecidedAtOnce, Notification):
        assert not model.objects.exists()
    assert (rows() - before, RefusedRequest.objects.count(), len(put(*messages, now=now))) == (
        *(ROWS_PER_MINUTE, 6 * ROWS_PER_MINUTE),
        0,
    )
    assert set(OutboundReply.objects.filter(message_type=21).values_list("is_discarded", flat=True)) == {True}


@limit("of a request with `NOT_REGISTERED` and `WRONG_TOKEN` alone: these, {days} days; then it counts as new")
def test_a_repeat_of_such_a_request_is_answered_as_before_and_not_delivered(days: int, now: datetime) -> None:
    """The phone registers in between."""
    process = Process(gateway := RecordingGateway(Outcome.DELIVERED))
    first, again, later, last = (request(push(), timestamp_ns=time.time_ns() + number) for number in range(4))
    say(first, now=now, process=process)
    say(registration(), now=now, process=process)
    assert refused() == [[ReportError.NOT_REGISTERED]]
    for message, at in ((again, now), (later, now + days * DAY - HOUR)):
        delete_all(OutboundReply)
        list(retention.purge(now=at, keep=30 * DAY))
        say(message, now=at, process=process)
        assert refused() == [[ReportError.NOT_REGISTERED]]
    assert gateway.pushes == []
    a_day_later = now + (days + 1) * DAY
    list(retention.purge(now=a_day_later, keep=30 * DAY))
    say(last, now=a_day_later, process=process)
    process.process_until(lambda: gateway.pushes)
    assert len(gateway.pushes) == 1


def test_repeats_leave_a_sample_of_rows_and_their_answers_leave_none(now: datetime) -> None:
    process = Process(RecordingGateway(Outcome.DELIVERED))
    copies = [request(push(), timestamp_ns=time.time_ns() + number) for number in range(50)]
    say(registration(), copies[0], now=now, process=process)
    process.process_backlog(now=now + timedelta(seconds=5))
    before = rows()
    say(*copies[1:], now=now + timedelta(minutes=1), process=process)
    assert NotificationRequest.objects.count() == Notification.objects.count() == 1
    assert rows() - before <= 2 * ROWS_PER_MINUTE  # some are answered, and others come too often
    kept = OutboundReply.objects.filter(message_type=21, is_discarded=False)
    assert (kept.count(), OutboundReply.objects.filter(message_type=21).count() > 1) == (1, True)
