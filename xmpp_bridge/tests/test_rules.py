"""Decisions of the bridge: domains served, verdicts on pushes and commands, answers, times to live, and limits."""

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.buckets.bucket import Limit
from notifications.messages import Grade, PushLimit
from registrations.messages import TokenType
from xmpp_bridge.limits import ROOTS, DeviceLimit, Limits, Rates
from xmpp_bridge.messages import Dialect, Format, Origin, Payload, PushNotification, StanzaError
from xmpp_bridge.rules import (
    ANSWERS,
    Decision,
    Domains,
    KnownDevice,
    Verdict,
    answer_to,
    decide,
    time_to_live,
    verify,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)

NOT_FOUND = StanzaError("cancel", "item-not-found")
GONE = StanzaError("cancel", "gone", disabled_client="its client")
BUSY = StanzaError("wait", "resource-constraint")


def push(stanza: str = "message", dialect: Dialect = Dialect.DRAFT, stanza_id: str = "") -> PushNotification:
    origin = Origin(stanza, stanza_id, "capulet.test", "push.montague.test")
    return PushNotification(dialect, origin, Grade.NORMAL, client="its client")


@pytest.mark.parametrize(
    ("verdict", "iq", "message"),
    [
        (Verdict.ACCEPTED, None, None),
        (Verdict.MERGED, None, None),
        (Verdict.REPEATED, None, None),
        (Verdict.UNKNOWN, NOT_FOUND, NOT_FOUND),
        (Verdict.IGNORED, NOT_FOUND, None),
        (Verdict.GONE, GONE, GONE),
        (Verdict.GONE_BEFORE, NOT_FOUND, None),
        (Verdict.FORBIDDEN, StanzaError("auth", "forbidden"), StanzaError("auth", "forbidden")),
        (Verdict.REFUSED, StanzaError("cancel", "policy-violation"), StanzaError("cancel", "policy-violation")),
        (Verdict.BUSY_DOMAIN, BUSY, BUSY),
        (Verdict.BUSY_CALLS, BUSY, BUSY),
        (Verdict.FULL, BUSY, BUSY),
        (
            Verdict.NOT_STORED,
            StanzaError("wait", "internal-server-error"),
            StanzaError("wait", "internal-server-error"),
        ),
    ],
)
def test_the_answer_to_each_verdict(verdict: Verdict, iq: StanzaError | None, message: StanzaError | None) -> None:
    assert answer_to(push("iq"), verdict) == iq
    assert answer_to(push("message"), verdict) == message


@pytest.mark.parametrize(
    ("dialect", "answer"), [(Dialect.DRAFT, GONE), (Dialect.MOD_PUSH2, GONE), (Dialect.XEP0357, NOT_FOUND)]
)
def test_only_push_2_has_an_error_for_a_client_that_is_gone(dialect: Dialect, answer: StanzaError) -> None:
    assert answer_to(push(dialect=dialect), Verdict.GONE) == answer


@pytest.mark.parametrize(
    ("domains", "is_served"),
    [
        (Domains(), True),
        (Domains(denied={"evil.test"}), True),
        (Domains(denied={"capulet.test"}), False),
        (Domains(denied={"test"}), False),
        (Domains(denied={"pulet.test", "a.capulet.test"}), True),
        (Domains(allowed={"capulet.test"}), True),
        (Domains(allowed={"test"}), True),
        (Domains(allowed={"pulet.test", "a.capulet.test"}), False),
        (Domains(denied={"capulet.test"}, allowed={"test"}), False),
        (Domains(allowed={"montague.test"}), False),
        (Domains(denied={"capulet.test"}, allowed={"capulet.test"}), False),
        (Domains(denied={"evil.test"}, allowed={"montague.test"}), False),
    ],
)
def test_serves_all_domains_but_those_denied_or_only_those_allowed(domains: Domains, is_served: bool) -> None:
    assert domains.serve("capulet.test") is is_served


@pytest.mark.parametrize("grade", Grade)
def test_a_call_is_tried_for_half_a_minute_a_wake_up_for_an_hour_and_a_payload_for_a_day(grade: Grade) -> None:
    is_call = grade is Grade.VOIP
    assert time_to_live(grade, has_payload=True) == timedelta(seconds=30 if is_call else 86400)
    assert time_to_live(grade, has_payload=False) == timedelta(seconds=30 if is_call else 3600)


# Verdicts on pushes ---------------------------------------------------------------------------------------------------

DEVICE = KnownDevice(
    id=UUID(int=1),
    is_active=True,
    domain="capulet.test",
    announced_from=None,
    is_used_today=True,
    style="",
    text="",
    sound="",
    calls_as_alerts=False,
    passes_texts=False,
    refuses_texts=False,
    route_id=1,
    generation=1,
    gateway="gorush",
    token_type=TokenType.FIREBASE,
    app_topic="",
    is_route_proven=True,
    address=b"a phone",
    waiting_count=0,
    waiting_wake=None,
    waiting_background=None,
)
WAITING = PushLimit.WAITING
WAKE = push()
SECRET = replace(WAKE, payload=Payload(Format.RFC8291, "ciphertext"))
CALL, BACKGROUND = replace(SECRET, grade=Grade.VOIP), replace(WAKE, grade=Grade.LOW)
FORWARD = replace(WAKE, is_forward=True, body="readable")
OTHER_SECRET = replace(WAKE, payload=Payload(Format.RFC8291, "another ciphertext"))


def named(pushed: PushNotification, stanza_id: str) -> PushNotification:
    return replace(pushed, origin=push(stanza_id=stanza_id).origin)


def decided(
    pushed: PushNotification, device: KnownDevice | None = DEVICE, limits: Limits | None = None, **facts: Any
) -> Decision:
    usual = {"domain": "capulet.test", "is_repeated": False, "is_full": False, "has_capacity": True, "now": NOW}
    return decide(pushed, device=device, limits=limits or Limits(Rates()), **usual | facts)


@pytest.mark.parametrize(
    ("pushed", "changes", "facts", "decision"),
    [
        (WAKE, {}, {}, Decision(Verdict.ACCEPTED, NOW)),
        (SECRET, {}, {}, Decision(Verdict.ACCEPTED, NOW, has_payload=True)),
        (SECRET, {}, {"has_capacity": False}, Decision(Verdict.ACCEPTED, NOW, beyond=WAITING)),
        (SECRET, {"waiting_wake": 7}, {}, Decision(Verdict.ACCEPTED, NOW, has_payload=True)),
        (SECRET, {"waiting_wake": 7}, {"has_capacity": False}, Decision(Verdict.MERGED, served_by=7, beyond=WAITING)),
        (WAKE, {"waiting_wake": 7}, {}, Decision(Verdict.MERGED, served_by=7)),
        (WAKE, {"waiting_background": 7}, {}, Decision(Verdict.ACCEPTED, NOW)),
        (BACKGROUND, {"waiting_background": 7, "waiting_wake": 8}, {}, Decision(Verdict.MERGED, served_by=7)),
        (CALL, {"waiting_wake": 7}, {"has_capacity": False}, Decision(Verdict.ACCEPTED, NOW, has_payload=True)),
        (FORWARD, {}, {}, Decision(Verdict.ACCEPTED, NOW)),
        (FORWARD, {"passes_texts": True}, {}, Decision(Verdict.ACCEPTED, NOW, has_payload=True)),
        (FORWARD, {"refuses_texts": True}, {}, Decision(Verdict.REFUSED)),
        (FORWARD, {"refuses_texts": True, "is_active": False}, {}, Decision(Verdict.GONE)),
        (WAKE, {"is_active": False}, {"is_repeated": True}, Decision(Verdict.REPEATED)),
        (WAKE, {"domain": "montague.test"}, {"is_repeated": True}, Decision(Verdict.UNKNOWN)),
        (WAKE, {}, {"is_full": True}, Decision(Verdict.FULL)),
        (WAKE, {"is_active": False}, {"is_full": True}, Decision(Verdict.GONE)),
    ],
)
def test_the_verdict_on_a_push(
    pushed: PushNotification, changes: dict[str, Any], facts: dict[str, Any], decision: Decision
) -> None:
    assert decided(pushed, DEVICE._replace(**changes), **facts) == decision


def test_only_pushes_that_a_device_got_are_charged_to_its_limits() -> None:
    limits = Limits(Rates(calls_per_minute=1, wake_seconds=5.0, unknown_per_hour=1))
    assert [decided(named(CALL, "one"), limits=limits).verdict for _ in range(2)] == [
        Verdict.ACCEPTED,
        Verdict.REPEATED,
    ]
    assert [decided(CALL, limits=limits).verdict for _ in range(2)] == [Verdict.BUSY_CALLS] * 2
    assert [decided(WAKE, limits=limits, is_full=True).verdict for _ in range(2)] == [Verdict.FULL] * 2
    assert decided(WAKE, limits=limits) == Decision(Verdict.ACCEPTED, NOW)
    later = NOW + timedelta(seconds=3)
    assert decided(WAKE, limits=limits, now=later) == Decision(Verdict.ACCEPTED, NOW + timedelta(seconds=5))
    assert [decided(WAKE, None, limits).verdict for _ in range(2)] == [Verdict.UNKNOWN, Verdict.IGNORED]
    assert decided(WAKE, None, limits, domain="montague.test").verdict == Verdict.UNKNOWN
    gone = DEVICE._replace(is_active=False)
    assert [decided(WAKE, gone, limits).verdict for _ in range(2)] == [Verdict.GONE, Verdict.GONE_BEFORE]


OTHER = DEVICE._replace(id=UUID(int=2), address=b"another phone")


@pytest.mark.parametrize(
    ("pushed", "changes", "first"),
    [
        (CALL, {}, Decision(Verdict.ACCEPTED, NOW, has_payload=True)),
        (SECRET, {}, Decision(Verdict.ACCEPTED, NOW, has_payload=True)),
        (WAKE, {}, Decision(Verdict.ACCEPTED, NOW)),
        (WAKE, {"is_active": False}, Decision(Verdict.GONE)),
    ],
    ids=["call", "payload", "wake-up", "gone"],
)
def test_pushes_of_one_device_are_charged_to_no_other(
    pushed: PushNotification, changes: dict[str, Any], first: Decision
) -> None:
    limits = Limits(Rates(calls_per_minute=1, payloads_per_minute=1, wakes_of_phone=(Limit(1, 60.0),)))
    assert [decided(pushed, each._replace(**changes), limits) for each in (DEVICE, OTHER)] == [first] * 2


def test_all_devices_at_one_address_share_the_limits_of_one() -> None:
    """Forty accounts may register one phone, whose owner need not be theirs."""
    limits = Limits(Rates(calls_per_minute=3, payloads_per_minute=2, wakes_of_phone=(Limit(4, 4.0),)))
    accounts = [DEVICE._replace(id=UUID(int=number)) for number in range(40)]
    calls = [decided(CALL, each, limits).verdict for each in accounts]
    assert calls == [Verdict.ACCEPTED] * 3 + [Verdict.BUSY_CALLS] * 37
    shown = [decided(SECRET, each, limits) for each in accounts]
    assert [each.has_payload for each in shown] == [True] * 2 + [False] * 38
    assert [each.beyond for each in shown] == [None] * 2 + [DeviceLimit.PAYLOADS] * 38
    waits = [(each.due_at - NOW).total_seconds() for each in shown[2:] if each.due_at]
    assert waits == pytest.approx([0] * 4 + list(range(1, 35)))


def test_a_wake_up_that_this_batch_has_planned_serves_later_ones() -> None:
    limits = Limits(Rates(wake_seconds=5.0))
    shown = [decided(WAKE, limits=limits, now=NOW + timedelta(seconds=seconds)) for seconds in (0, 2.5, 4.9)]
    later = Decision(Verdict.ACCEPTED, NOW + timedelta(seconds=5))
    assert shown == [Decision(Verdict.ACCEPTED, NOW), later, Decision(Verdict.MERGED)]


def test_a_background_wake_up_does_not_delay_another_one() -> None:
    limits = Limits(Rates())
    assert [decided(each, limits=limits).due_at for each in (BACKGROUND, WAKE)] == [NOW, NOW]


@pytest.mark.parametrize(
    ("first", "second", "changes", "verdict"),
    [
        (WAKE, BACKGROUND, {}, Verdict.ACCEPTED),  # a background wake-up, and one that is shown
        (WAKE, replace(WAKE, grade=Grade.HIGH), {}, Verdict.REPEATED),
        (FORWARD, replace(FORWARD, body="other"), {}, Verdict.REPEATED),  # both are wake-ups
        (FORWARD, WAKE, {}, Verdict.REPEATED),
        (FORWARD, replace(FORWARD, body="other"), {"passes_texts": True}, Verdict.ACCEPTED),
        (FORWARD, FORWARD, {"passes_texts": True}, Verdict.REPEATED),
        (SECRET, OTHER_SECRET, {}, Verdict.ACCEPTED),
        (named(SECRET, "one"), named(OTHER_SECRET, "two"), {}, Verdict.ACCEPTED),
        (named(SECRET, "one"), named(OTHER_SECRET, "one"), {}, Verdict.REPEATED),
    ],
)
def test_a_device_gets_the_same_content_once(
    first: PushNotification, second: PushNotification, changes: dict[str, Any], verdict: Verdict
) -> None:
    limits, device = Limits(Rates()), DEVICE._replace(**changes)
    shown = [decided(each, device, limits, now=NOW + timedelta(seconds=at)) for at, each in ((0, first), (0.4, second))]
    assert [decision.verdict for decision in shown] == [Verdict.ACCEPTED, verdict]


@pytest.mark.parametrize(
    ("pushed", "changes", "decision"),
    [
        # Within the second, the device may have woken, fetched its messages and disconnected.
        (WAKE, {}, Decision(Verdict.ACCEPTED, NOW + timedelta(seconds=5))),
        (FORWARD, {}, Decision(Verdict.ACCEPTED, NOW + timedelta(seconds=5))),
        (FORWARD, {"passes_texts": True}, Decision(Verdict.REPEATED)),
        (SECRET, {}, Decision(Verdict.REPEATED)),
        (CALL, {}, Decision(Verdict.ACCEPTED, NOW + timedelta(seconds=1), has_payload=True)),
        (named(WAKE, "one"), {}, Decision(Verdict.REPEATED)),
        (named(CALL, "one"), {}, Decision(Verdict.REPEATED)),
    ],
)
def test_a_wake_up_is_not_the_same_as_one_a_second_ago(
    pushed: PushNotification, changes: dict[str, Any], decision: Decision
) -> None:
    limits, device = Limits(Rates(wake_seconds=5.0)), DEVICE._replace(**changes)
    decided(pushed, device, limits, now=NOW)
    assert decided(pushed, device, limits, now=NOW + timedelta(seconds=1)) == decision


def test_each_domain_has_limits_of_its_own_which_pushes_without_valid_credentials_do_not_use() -> None:
    limits = Limits(Rates(pushes_of_domain=(Limit(1, 1.0),), unknown_per_hour=1))

    def verified(domain: str, *, is_ours: bool) -> Verdict | None:
        return verify(domain, limits, is_server=True, is_ours=is_ours, now=NOW)

    assert verified("capulet.test", is_ours=False) is Verdict.UNKNOWN
    assert (
        verified("montague.test", is_ours=False) is Verdict.BUSY_DOMAIN
    )  # one bucket for all pushes without valid credentials
    assert [verified(domain, is_ours=True) for domain in ("capulet.test", "montague.test")] == [None, None]
    later = NOW + timedelta(seconds=2)
    assert verify("montague.test", limits, is_server=True, is_ours=False, now=later) is Verdict.UNKNOWN
    assert verify("capulet.test", limits, is_server=True, is_ours=False, now=later) is Verdict.BUSY_DOMAIN


@pytest.mark.parametrize(
    ("is_server", "is_ours", "verdicts"),
    [
        (False, True, [Verdict.FORBIDDEN, Verdict.FORBIDDEN]),
        (True, True, [None, Verdict.BUSY_DOMAIN]),
        (True, False, [Verdict.UNKNOWN, Verdict.BUSY_DOMAIN]),
    ],
)
def test_the_verdict_without_a_look_at_the_device(
    is_server: bool, is_ours: bool, verdicts: list[Verdict | None]
) -> None:
    limits = Limits(Rates(pushes_of_domain=(Limit(1, 1.0),)))
    shown = [verify("capulet.test", limits, is_server=is_server, is_ours=is_ours, now=NOW) for _ in range(2)]
    assert shown == verdicts


def test_every_verdict_has_its_answer() -> None:
    assert set(ANSWERS) == set(Verdict)


# Commands -------------------------------------------------------------------------------------------------------------


# Token buckets --------------------------------------------------------------------------------------------------------


def test_a_zone_uses_up_no_call_payload_or_wake_up_of_another_one_to_the_same_phone() -> None:
    """A user may have a second account on a hostile server, and its device has the token of the same phone."""
    two = (Limit(2, 2.0),)
    limits = Limits(Rates(calls_per_minute=2, payloads_per_minute=2, wakes_of_phone=two))
    for number in range(40):
        limits.take_call("phone", f"{number}.evil.test", 0)
        limits.take_payload("phone", f"{number}.evil.test", 0)
        limits.wake_at(f"route {number}", "phone", f"{number}.evil.test", 0)
    assert limits.take_call("phone", "honest.example", 0)
    assert limits.take_payload("phone", "honest.example", 0)
    assert limits.wake_at("route", "phone", "honest.example", 0) == 0


def test_a_wake_up_that_an_earlier_batch_planned_is_planned_again_by_a_later_one() -> None:
    limits = Limits(Rates())
    assert [limits.wake_at("route", "address", "a.test", now) for now in (0, 1, 2)] == [0, 5, None]
    limits.keep()
    assert [limits.wake_at("route", "address", "a.test", now) for now in (3, 3, 4)] == [5, None, None]


@given(st.lists(st.floats(0, 60), min_size=1, max_size=40).map(sorted))
def test_every_wake_up_is_served_and_two_are_never_closer_than_the_pause(times: list[float]) -> None:
    limits = Limits(Rates())
    planned: list[float] = []
    for now in times:
        at = limits.wake_at("route", "address", "a.test", now)
        if at is not None:
            planned.append(at)
        assert any(now <= each <= now + 5 for each in planned)
    assert all(later - earlier >= 5 - 1e-9 for earlier, later in itertools.pairwise(planned))


@given(st.lists(st.tuples(st.floats(0, 7200), st.booleans()), max_size=60).map(sorted))
def test_calls_never_exceed_their_rate_whatever_fails_in_between(calls: list[tuple[float, bool]]) -> None:
    limits, taken = Limits(Rates(calls_per_minute=6)), []
    for now, is_stored in calls:
        if limits.take_call("route", "a.test", now) and is_stored:
            taken.append(now)
        (limits.keep if is_stored else limits.take_back)()
    assert all(sum(start <= at < start + 60 for at in taken) <= 12 for start in taken)


def test_a_domain_without_a_bucket_is_charged_to_the_limit_of_all() -> None:
    ten = (Limit(10, 10.0),)
    limits = Limits(Rates(in_all=ten), capacity=5)
    taken = [limits.take_from_domain(f"{number}.{number}.example", 0) for number in range(30)]
    assert taken == [True] * 10 + [False] * 20
    assert len(limits._buckets) <= 5 + len(ROOTS)
    assert limits.take_from_domain("honest.example", 60)
