"""The counters: what is taken back, what is forgotten, and that no name of strangers stays for ever."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from xmpp_bridge.limits import Limits, Rates


def test_what_a_batch_counted_can_be_taken_back() -> None:
    limits = Limits(Rates(calls_per_minute=1, unknown_per_hour=1))
    limits.keep()
    for _ in range(3):
        assert limits.take_call("route", 0)
        assert limits.hears_stranger("domain", 0)
        assert limits.wake_at("route", 0) == 0
        assert limits.tells_gone("route", 0)
        assert not limits.is_same_again("route", "content", 0)
        limits.note_content("route", "content", 0)
        limits.take_back()
    assert limits.take_call("route", 0)
    limits.keep()
    limits.take_back()
    assert not limits.take_call("route", 0)


def test_a_bucket_fills_up_steadily_and_never_beyond_its_size() -> None:
    limits = Limits(Rates(domain_burst=3, domain_per_second=1))
    taken = [limits.take_from_domain("a", now) for now in (0, 0, 0, 0, 1, 1, 100, 100, 100, 100)]
    assert taken == [True, True, True, False, True, False, True, True, True, False]
    assert limits.take_from_domain("b", 0)


def test_a_flood_of_a_minute_does_not_use_up_the_payloads_of_the_day() -> None:
    limits = Limits(Rates(payloads_per_minute=2, payloads_per_day=5))
    assert sum(limits.take_payload("route", 0) for _ in range(100)) == 2
    assert sum(limits.take_payload("route", 60) for _ in range(100)) == 2
    assert sum(limits.take_payload("route", 120) for _ in range(100)) == 1


def test_what_an_earlier_batch_planned_is_planned_once_more_by_a_later_one_that_does_not_find_it() -> None:
    limits = Limits(Rates())
    assert [limits.wake_at("route", now) for now in (0, 1, 2)] == [0, 5, None]
    limits.keep()
    assert [limits.wake_at("route", now) for now in (3, 3, 4)] == [5, None, None]


def test_who_has_many_domains_registers_no_more_devices_than_all_may() -> None:
    limits = Limits(Rates(routes_per_hour=2, new_devices_per_minute=1))
    taken = [limits.take_route(f"{number}.example", 0) for number in range(20)]
    assert taken == [True] * 10 + [False] * 10
    assert limits.take_route("later.example", 60)
    assert not limits.take_route("later.example", 60)


@given(st.lists(st.floats(0, 60), min_size=1, max_size=40).map(sorted))
def test_every_wake_up_is_served_and_two_are_never_closer_than_the_pause(times: list[float]) -> None:
    limits = Limits(Rates())
    planned: list[float] = []
    for now in times:
        at = limits.wake_at("route", now)
        if at is not None:
            planned.append(at)
        assert any(now <= each <= now + 5 for each in planned)
    assert all(later - earlier >= 5 - 1e-9 for earlier, later in itertools.pairwise(planned))


@given(st.lists(st.tuples(st.floats(0, 7200), st.booleans()), max_size=60).map(sorted))
def test_calls_never_exceed_their_rate_whatever_fails_in_between(calls: list[tuple[float, bool]]) -> None:
    limits, taken = Limits(Rates(calls_per_minute=6)), []
    for now, is_stored in calls:
        if limits.take_call("route", now) and is_stored:
            taken.append(now)
        (limits.keep if is_stored else limits.take_back)()
    assert all(sum(start <= at < start + 60 for at in taken) <= 12 for start in taken)


def test_names_are_forgotten_when_there_are_too_many_the_oldest_first() -> None:
    limits = Limits(Rates(unknown_per_hour=1), max_names=100)
    for number in range(10_000):
        limits.hears_stranger(f"domain {number}", 0)
        limits.keep()
    assert len(limits._states) == 100
    assert not limits.hears_stranger("domain 9999", 0)
    assert limits.hears_stranger("domain 0", 0)


def test_a_clock_that_goes_back_breaks_nothing() -> None:
    limits = Limits(Rates(domain_burst=1, domain_per_second=1))
    assert limits.take_from_domain("a", 100)
    assert not limits.take_from_domain("a", 50)
