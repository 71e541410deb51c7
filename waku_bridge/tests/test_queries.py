"""How much a query can make us answer."""

import pytest

from registrations.messages import QueryInfo
from waku_bridge.queries import EXCESS_BYTES_PER_SECOND, MAX_ANSWER_BYTES, REPEATED, TOO_MANY, Asked, Limits

ALICE, BOB, CAROL = (bytes([number]) * 64 for number in (1, 2, 3))
AUTHOR, OTHER = b"\x02" * 33, b"\x03" * 33
QUERY = Asked(AUTHOR, (ALICE,), size_bytes=300)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limits(clock: Clock) -> Limits:
    return Limits(per_minute=2, clock=clock)


def answered(limits: Limits, *queries: Asked) -> list[object]:
    verdicts = limits.judge(queries)
    verdicts.take()
    return list(verdicts.wanted)


def info(contacts: int = 0, installation: str = "one") -> QueryInfo:
    return QueryInfo(ALICE, installation, 1, b"g" * 65, allowed_key_list=(b"e" * 64,) * contacts)


def told(limits: Limits, *infos: QueryInfo, query: Asked = QUERY) -> int:
    verdicts = limits.judge([query])
    number = len(list(verdicts.fitting(query, infos)))
    verdicts.take()
    return number


def test_what_is_asked_again_within_five_seconds_is_answered_once(limits: Limits, clock: Clock) -> None:
    assert answered(limits, QUERY, QUERY) == [(ALICE,), REPEATED]
    assert answered(limits, QUERY) == [REPEATED]
    clock.now += 5
    assert answered(limits, QUERY) == [(ALICE,)]


def test_who_asks_about_another_key_or_is_another_is_answered(limits: Limits) -> None:
    queries = [QUERY, QUERY._replace(author=OTHER), QUERY._replace(public_key_hashes=(BOB,))]
    assert answered(limits, *queries) == [(ALICE,), (ALICE,), (BOB,)]


def test_a_key_is_answered_about_so_often_a_minute_whoever_asks(limits: Limits, clock: Clock) -> None:
    queries = [QUERY._replace(author=bytes([number]) * 33) for number in range(10)]
    assert answered(limits, *queries[:4]) == [(ALICE,), (ALICE,), TOO_MANY, TOO_MANY]
    assert answered(limits, queries[4], QUERY._replace(public_key_hashes=(ALICE, BOB))) == [TOO_MANY, (BOB,)]
    clock.now += 30
    assert answered(limits, *queries[5:8]) == [(ALICE,), TOO_MANY, TOO_MANY]


def test_what_is_not_committed_is_not_taken(limits: Limits) -> None:
    for _ in range(5):
        assert limits.judge([QUERY]).wanted == [(ALICE,)]


def test_a_short_answer_needs_no_room(limits: Limits, clock: Clock) -> None:
    limits.take([], [], 60 * EXCESS_BYTES_PER_SECOND)  # somebody else's
    assert told(limits, info(100), info(100)) == 2
    assert told(limits, info(278)) == 1  # 64 times 300 bytes
    assert told(limits, info(290)) == 0


def test_a_long_answer_takes_the_rest_from_what_all_share(limits: Limits, clock: Clock) -> None:
    numbers = [told(limits, info(1900), query=QUERY._replace(author=bytes([n]) * 33)) for n in range(40)]
    assert sum(numbers) == 60 * EXCESS_BYTES_PER_SECOND // (256 + 1900 * 68 - 64 * 300) == 27
    clock.now += 60
    assert told(limits, info(1900)) == 1


def test_an_answer_has_at_most_what_one_message_carries(limits: Limits) -> None:
    assert told(limits, *[info(1000, str(number)) for number in range(5)]) == 2
    assert 2 * (256 + 68_000) <= MAX_ANSWER_BYTES < 3 * (256 + 68_000)


def test_memory_is_bounded(limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waku_bridge.queries.MOST_REMEMBERED", 100)
    for number in range(1000):
        answered(limits, Asked(AUTHOR, (number.to_bytes(64),), 300))
    assert len(limits._keys) <= 101
    assert len(limits._answered) <= 101
