"""The priority rule of the inbox."""

from datetime import timedelta

import pytest

from kit.buckets.bucket import Limit
from notifications.messages import NotificationType, PushNotification, PushRequest
from registrations.messages import Named, RegistrationMessage
from waku_bridge.codec.keys import key_hash
from waku_bridge.inbox.priority import BUDGET, MAX_NAMED, SHARE, THRESHOLD, Priority, cheapest, cost, fitting, named
from waku_bridge.messages import Body, Decoded, Query, Registration

AUTHOR = b"\x02" * 33
PHONE, OTHER = b"p" * 32, b"o" * 32


@pytest.fixture
def priority() -> Priority:
    return Priority((Limit(3, 30.0),), lambda: 1.0, lambda: 1000.0)


@pytest.fixture
def behind(priority: Priority) -> Priority:
    priority.decides_all([1] * BUDGET, is_full=True, waited=2 * THRESHOLD)
    return priority


def shown(body: Body) -> Decoded:
    return Decoded(AUTHOR, b"i" * 32, body)


def request(count: int) -> Decoded:
    notification = PushNotification(b"h" * 64, "one", "token", NotificationType.MESSAGE)
    return shown(PushRequest(b"m", (notification,) * count))


def registered(message: RegistrationMessage | None) -> Decoded:
    return shown(Registration(b"r" * 64, b"content", message))


@pytest.mark.parametrize(
    ("decoded", "size_bytes", "units"),
    [
        (None, 135_168, 0),
        (request(0), 1000, 1),
        (request(1), 1000, 1),
        (request(5), 1000, 2),
        (request(100), 19_000, 21),
        (request(1), 135_168, 34),
        (registered(None), 1000, 1),
        (registered(None), 4095, 1),
        (registered(None), 4096, 2),
        (registered(None), 112_000, 28),
        (shown(Query((b"h" * 64,))), 1000, 4),
        (shown(Query((b"h" * 64,) * 100)), 16_400, 5),
    ],
)
def test_the_cost_of_a_message_depends_on_its_bytes_and_its_notifications(
    decoded: Decoded | None, size_bytes: int, units: int
) -> None:
    assert cost(decoded, size_bytes) == units


@pytest.mark.parametrize(
    ("decoded", "names"),
    [
        (None, []),
        (shown(Query((b"h" * 64,))), []),
        (registered(None), []),
        (registered(RegistrationMessage("one", 1, access_token="t")), [Named(key_hash(AUTHOR), "one", version=1)]),
        (registered(RegistrationMessage("o\0ne", 1)), []),
        (request(1), [Named(b"h" * 64, "one", "token")]),
        (request(100), [Named(b"h" * 64, "one", "token")] * MAX_NAMED),
    ],
)
def test_a_message_is_about_the_installations_that_it_notifies_or_registers(
    decoded: Decoded | None, names: list[Named]
) -> None:
    assert named(decoded) == names


LATE = THRESHOLD + timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("costs", "is_full", "waited", "all_decided", "is_behind"),
    [
        ([1] * BUDGET, True, LATE, False, True),  # one-unit messages are no exception
        ([1] * BUDGET, True, THRESHOLD, True, False),
        ([1] * (BUDGET - 1), False, 100 * LATE, True, False),
        ([21] * 10, False, LATE, False, True),
        ([20] * 10, False, LATE, True, False),
        ([21] * 10, False, THRESHOLD, False, False),
        ([], False, timedelta(), True, False),
    ],
)
def test_a_batch_is_decided_whole_within_the_budget_while_the_inbox_is_not_behind(
    priority: Priority, costs: list[int], is_full: bool, waited: timedelta, all_decided: bool, is_behind: bool
) -> None:
    assert priority.decides_all(costs, is_full=is_full, waited=waited) is all_decided
    assert priority.is_behind is is_behind


def test_the_inbox_stays_behind_until_a_batch_is_not_full(priority: Priority) -> None:
    """The newest envelopes come first meanwhile, so a batch holds envelopes that have hardly waited."""
    full, rest = [1] * BUDGET, [1] * (BUDGET - 1)
    batches = [(full, LATE), (full, timedelta()), (rest, LATE), (full, timedelta())]
    decided = [priority.decides_all(costs, is_full=costs is full, waited=waited) for costs, waited in batches]
    assert decided == [False, False, True, True]


def test_other_messages_get_the_share_also_when_proven_ones_use_the_whole_budget(priority: Priority) -> None:
    costs = [BUDGET, 1, SHARE, 1]
    assert priority.choose(costs, [[PHONE], [], [], []]) == ({0, 1, 2, 3}, set())
    assert priority.choose([BUDGET, SHARE, SHARE], [[PHONE], [], []]) == ({0, 1}, {2})


@pytest.mark.parametrize(
    ("costs", "decided"),
    [
        ([SHARE, 6, 7, 6], {1, 2, 3}),
        ([SHARE, SHARE, SHARE], {0}),
        ([2 * SHARE], {0}),  # one that costs more than the share is decided alone
    ],
)
def test_other_messages_go_by_cost_and_then_by_arrival(costs: list[int], decided: set[int]) -> None:
    assert set(cheapest(costs, range(len(costs)))) == decided


@pytest.mark.parametrize(("units", "expected"), [(0, []), (3, []), (4, [1]), (11, [1, 2]), (12, [1, 2, 0])])
def test_messages_that_fit_cost_no_more_than_the_units(units: int, expected: list[int]) -> None:
    assert list(fitting([4, 4, 4, 5], [1, 2, 0], units=units)) == expected


def test_a_message_that_costs_nothing_is_never_postponed(behind: Priority) -> None:
    assert behind.choose([0, SHARE, 0, SHARE], [[]] * 4) == ({0, 1, 2}, {3})


def test_made_up_addresses_neither_fill_the_memory_nor_refill_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    def goes_first(address: bytes) -> bool:
        return 1 in priority.choose([SHARE, SHARE], [[], [address]]).decided

    monkeypatch.setattr("waku_bridge.inbox.priority.CAPACITY", 10)
    priority = Priority((Limit(3, 30.0),), lambda: 1.0, lambda: 1000.0)
    priority.is_behind = True
    before = [goes_first(PHONE) for _ in range(4)]
    made_up = [goes_first(bytes([number]) * 32) for number in range(100)]
    assert (before, made_up.count(True), goes_first(PHONE)) == ([True, True, True, False], 9, False)
