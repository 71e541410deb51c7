"""Token buckets of the bridge: charges that are taken back, forgotten names, and the bound on names in memory."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from kit.buckets.bucket import Limit
from xmpp_bridge.rules.limits import ROOTS, Limits, Mark, Rates


def test_the_charges_of_a_batch_can_be_taken_back() -> None:
    limits = Limits(Rates(calls_per_minute=1, unknown_per_hour=1))
    limits.keep()
    for _ in range(3):
        assert limits.take_call("route", "a.test", 0)
        assert limits.answers_unknown("domain", 0)
        assert limits.wake_at("route", "address", "a.test", 0) == 0
        assert limits.answers_gone("route", 0)
        assert not limits.is_same_again("route", [Mark(b"content", is_wake=False)], 0)
        limits.note_marks("route", [Mark(b"content", is_wake=False)], 0)
        limits.take_back()
    assert limits.take_call("route", "a.test", 0)
    limits.keep()
    limits.take_back()
    assert not limits.take_call("route", "a.test", 0)


def test_a_wake_up_that_an_earlier_batch_planned_is_planned_again_by_a_later_one() -> None:
    limits = Limits(Rates())
    assert [limits.wake_at("route", "address", "a.test", now) for now in (0, 1, 2)] == [0, 5, None]
    limits.keep()
    assert [limits.wake_at("route", "address", "a.test", now) for now in (3, 3, 4)] == [5, None, None]


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


def test_two_hundred_thousand_names_refill_no_bucket() -> None:
    """If the oldest names were forgotten, made-up names would refill the buckets of a victim."""
    limits = Limits(Rates(calls_per_minute=2, payloads_per_minute=2, unknown_per_hour=1, commands_per_hour=2))
    drained = [
        lambda: limits.take_call("victim", "a.test", 0),
        lambda: limits.take_payload("victim", "a.test", 0),
        lambda: limits.answers_unknown("victim", 0),
    ]
    for take in drained:
        while take():
            limits.keep()
    for number in range(200_001):
        limits.answers_unknown(str(number), 0)
        limits.keep()
    assert [take() for take in drained] == [False] * 3
    assert len(limits._buckets) <= 200_000 + len(ROOTS)


def test_a_domain_without_a_bucket_is_charged_to_the_limit_of_all() -> None:
    ten = (Limit(10, 10.0),)
    limits = Limits(Rates(in_all=ten), capacity=5)
    taken = [limits.take_from_domain(f"{number}.{number}.example", 0) for number in range(30)]
    assert taken == [True] * 10 + [False] * 20
    assert len(limits._buckets) <= 5 + len(ROOTS)
    assert limits.take_from_domain("honest.example", 60)
