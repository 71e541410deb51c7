"""Tests of the policy: who is woken, and when a push is sent again."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifications.messages import (
    PROVIDER_UNREACHABLE,
    UNREACHABLE,
    AppKey,
    NotificationType,
    Outcome,
    Push,
    PushNotification,
    ReportError,
    Result,
)
from notifications.policy import (
    CONFIG_RETRY_SECONDS,
    GATEWAY_FAILED,
    MAX_RETRY_SECONDS,
    UNPROVEN_FAILURES,
    Recipient,
    Verdict,
    Wish,
    delivers_nothing,
    evaluate,
    is_answer,
    is_contact,
    is_dying,
    is_failure_of_push,
    may_help_to_drop_payload,
    report_error,
    retry_seconds,
    wish_against,
)

CHAT, AUTHOR, NOBODY = b"chat", b"author", frozenset[bytes]()
EVERYTHING = Recipient(enabled=True, block_mentions=False, blocked=NOBODY, muted=NOBODY, allowed_mentions={CHAT})
MESSAGE, MENTION, JOIN, CONTACT = NotificationType.MESSAGE, NotificationType.MENTION, 3, 4
DELIVER, SUPPRESSED = Verdict.DELIVER, Verdict.SUPPRESSED


def evaluated(notification_type, recipient=EVERYTHING, **facts):
    notification = PushNotification(b"key", "id", "token", notification_type, chat_id=CHAT, author=AUTHOR)
    return evaluate(notification, recipient, **{"is_token_right": True, "is_duplicate": False} | facts)


@pytest.mark.parametrize(
    ("rules", "message", "mention", "others"),
    [
        ({}, DELIVER, DELIVER, DELIVER),
        ({"enabled": False}, SUPPRESSED, SUPPRESSED, SUPPRESSED),
        ({"blocked": {AUTHOR}}, SUPPRESSED, SUPPRESSED, SUPPRESSED),
        ({"blocked": {CHAT}}, SUPPRESSED, DELIVER, DELIVER),
        ({"muted": {CHAT}}, SUPPRESSED, DELIVER, DELIVER),
        ({"muted": {AUTHOR}}, DELIVER, DELIVER, DELIVER),
        ({"block_mentions": True}, DELIVER, SUPPRESSED, DELIVER),
        ({"allowed_mentions": NOBODY}, DELIVER, SUPPRESSED, DELIVER),
        ({"allowed_mentions": {b"another chat"}}, DELIVER, SUPPRESSED, DELIVER),
        ({"allowed_mentions": {AUTHOR}}, DELIVER, SUPPRESSED, DELIVER),
    ],
    ids=str,
)
def test_follows_the_rules_of_the_recipient(rules, message, mention, others):
    recipient = replace(EVERYTHING, **rules)
    assert evaluated(MESSAGE, recipient) is message
    assert evaluated(MENTION, recipient) is mention
    for notification_type in (JOIN, CONTACT, 5, 99, -1, 2**31 - 1, -(2**31)):
        assert evaluated(notification_type, recipient) is others


@pytest.mark.parametrize(
    ("rules", "notification_type", "wish"),
    [
        ({"enabled": False, "blocked": {AUTHOR}}, MESSAGE, Wish.NOTIFICATIONS_OFF),
        ({"blocked": {AUTHOR, CHAT}}, MESSAGE, Wish.AUTHOR_BLOCKED),
        ({"blocked": {CHAT}, "muted": {CHAT}}, MESSAGE, Wish.CHAT_BLOCKED),
        ({"muted": {CHAT}}, MESSAGE, Wish.CHAT_MUTED),
        ({"block_mentions": True, "allowed_mentions": NOBODY}, MENTION, Wish.MENTIONS_BLOCKED),
        ({"allowed_mentions": NOBODY}, MENTION, Wish.MENTION_NOT_ALLOWED),
        ({"muted": {CHAT}}, JOIN, None),
    ],
)
def test_the_first_violated_wish_is_named(rules, notification_type, wish):
    notification = PushNotification(b"key", "id", "token", notification_type, chat_id=CHAT, author=AUTHOR)
    assert wish_against(notification, replace(EVERYTHING, **rules)) is wish


@pytest.mark.requirement("SN1")
def test_a_wrong_token_is_reported_despite_the_rules_and_a_block_stays_hidden():
    blocking = replace(EVERYTHING, enabled=False, blocked={AUTHOR})
    assert evaluated(MESSAGE, blocking, is_token_right=False) is Verdict.WRONG_TOKEN
    assert evaluated(MESSAGE, blocking) is SUPPRESSED


def test_an_unknown_recipient_is_not_registered_whatever_the_token():
    assert evaluated(MESSAGE, None, is_token_right=False) is Verdict.NOT_REGISTERED


NOTHING_WANTED = Recipient(False, True, {AUTHOR}, {CHAT}, set())


@pytest.mark.parametrize(
    ("recipient", "facts", "verdict"),
    [
        (EVERYTHING, {"is_duplicate": True}, Verdict.DUPLICATE),
        (EVERYTHING, {"is_duplicate": True, "is_token_right": False}, Verdict.WRONG_TOKEN),
        (replace(EVERYTHING, muted={CHAT}), {"is_duplicate": True}, SUPPRESSED),
        (EVERYTHING, {"is_overloaded": True}, Verdict.OVERLOADED),
        (EVERYTHING, {"is_overloaded": True, "is_duplicate": True}, Verdict.DUPLICATE),
        (EVERYTHING, {"is_overloaded": True, "is_token_right": False}, Verdict.WRONG_TOKEN),
        (NOTHING_WANTED, {"is_overloaded": True}, Verdict.OVERLOADED),  # as for a wanted one
        (NOTHING_WANTED, {"is_overloaded": True, "is_duplicate": True}, SUPPRESSED),
    ],
)
def test_duplicates_and_overload_are_reported_where_the_notification_would_be_delivered(recipient, facts, verdict):
    assert evaluated(MESSAGE, recipient, **facts) is verdict


@pytest.mark.parametrize(("ambiguous_count", "seconds"), [(1, 10), (2, 30), (3, 90), (8, 21_870)])
@pytest.mark.parametrize("jitter", [0.0, 0.5, 1.0])
def test_the_pauses_of_an_ambiguous_push_triple_from_ten_seconds(ambiguous_count, seconds, jitter):
    pause = retry_seconds(Result(Outcome.AMBIGUOUS), ambiguous_count, jitter=jitter)
    assert pause == pytest.approx(seconds * (1 + jitter / 5))


def test_a_gateway_that_asks_for_a_longer_pause_gets_it_after_an_ambiguous_answer_too():
    assert retry_seconds(Result(Outcome.AMBIGUOUS, retry_after_seconds=300), 1, jitter=1.0) == 300
    assert retry_seconds(Result(Outcome.AMBIGUOUS, retry_after_seconds=3), 1, jitter=0.0) == 10


def test_only_a_dead_token_is_reported_as_an_error():
    assert report_error(is_token_dead=True) is ReportError.NOT_REGISTERED
    assert report_error(is_token_dead=False) is ReportError.NONE


@pytest.mark.parametrize(
    ("result", "attempts", "seconds"),
    [
        *((Result(Outcome.TRANSIENT), n, at) for n, at in ((0, 2), (1, 2), (2, 4), (3, 8), (9, 512), (10_000, 600))),
        (Result(Outcome.TRANSIENT, retry_base_seconds=60), 1, 60),
        (Result(Outcome.CONFIG), 1, CONFIG_RETRY_SECONDS),
        (Result(Outcome.CONFIG, retry_base_seconds=1200), 1, 1200),
        # Then the queue empties soon after the provider's return.
        (Result(Outcome.TRANSIENT, PROVIDER_UNREACHABLE), 12, 20),
        (Result(Outcome.TRANSIENT, "unavailable"), 10, 600),
    ],
)
def test_waits_at_most_twice_as_long_after_each_attempt_from_the_pause_of_the_error_on(result, attempts, seconds):
    assert retry_seconds(result, attempts, jitter=1.0) == seconds


def test_retries_at_once_without_jitter_and_never_before_the_requested_pause():
    assert retry_seconds(Result(Outcome.TRANSIENT), 3, jitter=0.0) == 0
    assert retry_seconds(Result(Outcome.TRANSIENT, retry_after_seconds=90), 3, jitter=0.0) == 90


@given(st.integers(0, 32767), st.floats(0, 1), st.sampled_from([2.0, 60.0]), st.floats(0, 3600, allow_subnormal=False))
def test_never_waits_longer_than_the_maximum_or_shorter_than_the_requested_pause(attempts, jitter, base, after):
    result = Result(Outcome.TRANSIENT, retry_base_seconds=base, retry_after_seconds=after)
    assert after <= retry_seconds(result, attempts, jitter=jitter) <= max(MAX_RETRY_SECONDS, after)


def attempts_of(result, life, *, jitter):
    """Return the times of all attempts at an address without a delivery until the push expires, in seconds after it was
    accepted.
    """
    at, tried = 0.0, []
    while at < (left := life.total_seconds()):
        tried.append(at)
        at += retry_seconds(result, len(tried), jitter=jitter, left_seconds=left - at)
    return tried


@pytest.mark.parametrize("jitter", [0.0, 1.0])
@pytest.mark.parametrize("result", [Result(Outcome.CONFIG), Result(Outcome.TRANSIENT)])
def test_an_address_that_nothing_was_delivered_to_makes_few_rows_in_a_day(result, jitter):
    tried = attempts_of(result, timedelta(days=1), jitter=jitter)
    assert len(tried) < 50
    assert 3.4 < tried[UNPROVEN_FAILURES - 1] / 3600 < 4.8


@pytest.mark.parametrize(
    ("result", "attempts", "seconds"),
    [
        (Result(Outcome.TRANSIENT), 1, 10),
        (Result(Outcome.TRANSIENT), 4, 1250),
        (Result(Outcome.TRANSIENT), 10_000, 3600),
        (Result(Outcome.CONFIG), 1, 60),
        (Result(Outcome.CONFIG), 2, 300),
        (Result(Outcome.CONFIG, retry_base_seconds=7200), 1, 7200),
        (Result(Outcome.TRANSIENT, retry_after_seconds=5000), 1, 5000),
    ],
)
def test_waits_five_times_as_long_after_each_failure_at_an_address_without_a_delivery(result, attempts, seconds):
    assert retry_seconds(result, attempts, jitter=0.0, left_seconds=86_400) == seconds
    assert retry_seconds(Result(Outcome.CONFIG), 1, jitter=1.0, left_seconds=86_400) == 72


@pytest.mark.parametrize(
    ("result", "shows_contact", "shows_an_answer"),
    [
        *((Result(outcome), True, True) for outcome in (Outcome.DELIVERED, Outcome.DEAD, Outcome.PAYLOAD)),
        (Result(Outcome.DELIVERED, is_dry_run=True), True, False),
        (Result(Outcome.TRANSIENT), True, False),
        (Result(Outcome.PAYLOAD, is_untried=True), False, False),
        (Result(Outcome.TRANSIENT, is_unreached=True), False, False),
        (Result(Outcome.AMBIGUOUS, GATEWAY_FAILED), False, False),
    ],
)
def test_which_results_show_that_a_gateway_was_reached_and_that_an_app_gets_through(
    result, shows_contact, shows_an_answer
):
    assert (is_contact(result), is_answer(result)) == (shows_contact, shows_an_answer)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (Result(Outcome.CONFIG), True),
        (Result(Outcome.TRANSIENT, "unknown"), True),
        (Result(Outcome.TRANSIENT, PROVIDER_UNREACHABLE), False),
        (Result(Outcome.CONFIG, "no_gateway", is_untried=True), False),
        (Result(Outcome.TRANSIENT, UNREACHABLE, is_unreached=True), False),
        (Result(Outcome.AMBIGUOUS, "timeout"), False),
        (Result(Outcome.DEAD), False),
        (Result(Outcome.PAYLOAD), False),
        (Result(Outcome.DELIVERED), False),
    ],
)
def test_only_a_push_that_was_sent_and_not_taken_failed(result, expected):
    assert is_failure_of_push(result) is expected


@pytest.mark.parametrize("life", [timedelta(hours=1), timedelta(days=1)])
@pytest.mark.parametrize("jitter", [0.1, 0.5, 1.0])
def test_a_push_to_a_new_address_is_tried_until_a_few_minutes_before_its_end(life, jitter):
    tried = attempts_of(Result(Outcome.TRANSIENT), life, jitter=jitter)
    assert life.total_seconds() - tried[-1] <= MAX_RETRY_SECONDS


def test_a_call_to_a_new_address_is_tried_while_it_rings():
    assert len(attempts_of(Result(Outcome.TRANSIENT), timedelta(seconds=45), jitter=1.0)) == 5


PUSH = Push(1, 1, AppKey(2, ""), b"token", 1, b"key", b"chat", b"message", "c" * 32)


def test_dropping_the_ciphertext_helps_where_there_is_one_and_nothing_else_is_wrong():
    too_large = Result(Outcome.PAYLOAD, "too_large")
    assert may_help_to_drop_payload(PUSH, too_large)
    assert not may_help_to_drop_payload(replace(PUSH, message=b""), too_large)
    assert not may_help_to_drop_payload(PUSH, replace(too_large, is_untried=True))


def test_dropping_the_ciphertext_of_a_push_that_wakes_helps_once():
    too_large = Result(Outcome.PAYLOAD, "too_large")
    waking = replace(PUSH, message=b"", wake=b"content without the ciphertext")
    assert may_help_to_drop_payload(waking, too_large)
    assert not may_help_to_drop_payload(replace(waking, is_payload_dropped=True), too_large)
    assert may_help_to_drop_payload(replace(waking, message=b"message", is_payload_dropped=True), too_large)


@pytest.mark.parametrize(
    ("sends", "addresses", "senders", "expected"),
    [(10, 5, 3, True), (9, 9, 9, False), (10, 4, 10, False), (10, 10, 2, False), (100, 5, 3, True), (0, 0, 0, False)],
)
def test_an_app_delivers_nothing_when_ten_sends_to_five_addresses_of_three_senders_failed(
    sends, addresses, senders, expected
):
    numbers = range(sends)
    to, by = [b"%d" % (n % addresses) for n in numbers], [b"%d" % (n % senders) for n in numbers]
    assert delivers_nothing(to, by) is expected


@pytest.mark.parametrize(
    ("dead", "sent", "expected"), [(20, 99, True), (20, 100, False), (19, 19, False), (21, 100, True), (0, 0, False)]
)
def test_tokens_are_dying_when_they_are_many_and_a_large_share(dead, sent, expected):
    assert is_dying(dead, sent) is expected
