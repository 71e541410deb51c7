"""Who goes first when more came than can be worked off."""

import pytest

from kit.buckets.bucket import Limit
from notifications.messages import NotificationType, PushNotification, PushRequest
from notifications.standing import Named
from registrations.messages import RegistrationMessage
from waku_bridge import precedence
from waku_bridge.codec.keys import key_hash
from waku_bridge.messages import Body, Decoded, Query, Registration
from waku_bridge.precedence import FULL_TURN, LEAST_UNITS, MOST_NAMED, UNITS, Room, cost, named

AUTHOR = b"\x02" * 33
PHONE, OTHER = b"p" * 32, b"o" * 32


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def room(clock: Clock) -> Room:
    return Room((Limit(3, 30.0),), lambda: 1.0, clock)


def said(body: Body) -> Decoded:
    return Decoded(AUTHOR, b"i" * 32, body)


def request(count: int) -> Decoded:
    notification = PushNotification(b"h" * 64, "one", "token", NotificationType.MESSAGE)
    return said(PushRequest(b"m", (notification,) * count))


def registered(message: RegistrationMessage | None) -> Decoded:
    return said(Registration(b"r" * 64, b"content", message))


@pytest.mark.parametrize(
    ("decoded", "units"),
    [
        (None, 0),
        (request(0), 1),
        (request(1), 1),
        (request(5), 2),
        (request(100), 21),
        (registered(None), 1),
        (said(Query((b"h" * 64,))), 1),
    ],
)
def test_a_message_costs_what_its_kind_and_its_notifications_cost(decoded: Decoded | None, units: int) -> None:
    assert cost(decoded) == units


@pytest.mark.parametrize(
    ("decoded", "names"),
    [
        (None, []),
        (said(Query((b"h" * 64,))), []),
        (registered(None), []),
        (registered(RegistrationMessage("one", 1, access_token="t")), [Named(key_hash(AUTHOR), "one")]),
        (registered(RegistrationMessage("o\0ne", 1)), []),
        (request(1), [Named(b"h" * 64, "one", "token")]),
        (request(100), [Named(b"h" * 64, "one", "token")] * MOST_NAMED),
    ],
)
def test_a_message_is_known_by_whom_it_notifies_or_by_who_registers(
    decoded: Decoded | None, names: list[Named]
) -> None:
    assert named(decoded) == names


def test_what_concerns_a_proven_address_goes_first_whatever_it_costs(room: Room) -> None:
    assert room.choose([UNITS, UNITS, 2 * UNITS], [[], [], [PHONE]]) == {0, 2}


def test_of_strangers_the_cheapest_go_first_and_then_those_who_came_first(room: Room) -> None:
    assert room.choose([UNITS, 20, 21, 20], [[]] * 4) == {1, 2, 3}
    room.begin()
    assert room.choose([UNITS, UNITS, UNITS], [[]] * 3) == {0}


def test_what_costs_nothing_is_never_put_off(room: Room) -> None:
    assert room.choose([0, UNITS, 0, UNITS], [[]] * 4) == {0, 1, 2}


def test_strangers_are_left_with_something_however_much_the_known_ask_for(room: Room) -> None:
    costs = [FULL_TURN, *[1] * (2 * LEAST_UNITS)]
    assert room.choose(costs, [[PHONE], *[[]] * (2 * LEAST_UNITS)]) == set(range(LEAST_UNITS + 1))


def test_a_turn_that_is_late_has_less_for_strangers(room: Room) -> None:
    assert room.choose([1] * UNITS, [[]] * UNITS, units=LEAST_UNITS) == set(range(LEAST_UNITS))
    assert room.is_short
    room.begin()
    assert not room.is_short
    room.choose([1] * UNITS, [[]] * UNITS)
    assert not room.is_short


def test_each_turn_has_the_same_room(room: Room) -> None:
    room.take([FULL_TURN])
    assert not room.has([1])
    room.begin()
    assert room.has([FULL_TURN])
    assert not room.has([FULL_TURN, 1])


def test_one_address_goes_first_only_as_often_as_it_may_be_woken(room: Room, clock: Clock) -> None:
    def goes_first(address: bytes) -> bool:
        room.begin()
        room.take([FULL_TURN])
        return 1 in room.choose([LEAST_UNITS, UNITS], [[], [address]])

    assert [goes_first(PHONE) for _ in range(5)] == [True, True, True, False, False]
    assert goes_first(OTHER)
    clock.now += 10
    assert [goes_first(PHONE) for _ in range(2)] == [True, False]


def test_names_that_nobody_knows_leave_the_memory_bounded_and_fill_no_bucket(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precedence, "MOST_REMEMBERED", 10)
    room = Room((Limit(3, 30.0),), lambda: 1.0, clock)
    goes_first = [room._goes_first(PHONE) for _ in range(4)]
    for number in range(100):
        room.choose([1], [[bytes([number]) * 32]])
    assert len(room._buckets) == 10
    assert goes_first == [True, True, True, False]
    assert not room._goes_first(PHONE)
