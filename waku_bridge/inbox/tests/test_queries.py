"""Limits of the answers to queries."""

from datetime import UTC, datetime
from itertools import count

import pytest

from kit.buckets.shared import Share, SharedBuckets
from registrations.messages import QueryInfo
from waku_bridge.codec.wire import content_topic, query_name
from waku_bridge.inbox import queries
from waku_bridge.inbox.queries import (
    EXCESS,
    EXCESS_OF_OTHERS,
    REPEATED,
    TOO_MANY,
    Asked,
    Limits,
)

pytestmark = pytest.mark.django_db
ALICE, BOB, CAROL = (bytes([number]) * 64 for number in (1, 2, 3))
AUTHOR, OTHER = b"\x02" * 33, b"\x03" * 33
AUTHORS = count(1)


def asked(*keys: bytes, author: bytes = AUTHOR, on: bytes = b"", size: int = 300) -> Asked:
    """Return a query about these keys, on the topic of the first one."""
    return Asked(author, keys, size, content_topic(query_name(on or keys[0])))


QUERY = asked(ALICE)


class OneWorker(Limits):
    """The limits of a single worker, whose batches are committed at once."""

    def __init__(self) -> None:
        super().__init__(2, lambda: 1000.0, Share())
        self.shared = SharedBuckets(Share(), capacity=100)

    def ask(self, query: Asked) -> str:
        return self.refusal(query, self.shared, at=datetime.fromtimestamp(1000, UTC))

    def committed(self) -> None:
        self.keep()
        self.shared.keep()


@pytest.fixture
def limits() -> OneWorker:
    return OneWorker()


def refused(limits: OneWorker, *queries: Asked) -> list[str]:
    """Return the reason why each of these queries of a batch is refused, or an empty text."""
    refusals = [limits.ask(query) for query in queries]
    limits.committed()
    return refusals


def info(contacts: int = 0, installation: str = "one", *, of: bytes = ALICE, is_proven: bool = False) -> QueryInfo:
    listed = (b"e" * 64,) * contacts
    return QueryInfo(of, installation, 1, b"g" * 65, allowed_key_list=listed, has_proven_address=is_proven)


def reported(limits: OneWorker, *infos: QueryInfo, query: Asked = QUERY) -> int:
    number = len(list(limits.fitting(query, infos)))
    limits.keep()
    return number


def test_a_batch_that_is_not_committed_takes_no_tokens(limits: OneWorker) -> None:
    for _ in range(5):
        assert limits.ask(QUERY) == ""
        assert len(list(limits.fitting(QUERY, [info(1900)] * 23))) == 1
        limits.shared.take_back()
        limits.take_back()


LONG = 256 + 1900 * 68 - 64 * 300  # the excess of the answer about an installation with 1 900 contacts


def many_reported(limits: OneWorker, count: int, **fields: object) -> int:
    """Return how many of these queries about an installation with 1 900 contacts are answered."""
    queries = [QUERY._replace(author=author()) for _ in range(count)]
    return sum(reported(limits, info(1900, **fields), query=each) for each in queries)


def author() -> bytes:
    return next(AUTHORS).to_bytes(33)


def test_no_user_goes_without_long_answers_because_of_another_or_of_made_up_keys(limits: OneWorker) -> None:
    many_reported(limits, 40)
    many_reported(limits, 40, is_proven=True)
    assert not limits.take_excess(EXCESS, LONG)
    assert many_reported(limits, 2, of=BOB, is_proven=True) == 1
    assert many_reported(limits, 2, of=CAROL) == 0


def test_an_installation_without_a_delivery_beside_one_with_a_proven_address_counts_as_this(limits: OneWorker) -> None:
    """So a new phone of a user is found, however many outsiders there are."""
    while limits.take_excess(EXCESS_OF_OTHERS, LONG):
        limits.keep()
    assert reported(limits, info(1000), info(is_proven=True)) == 2


def test_made_up_keys_neither_fill_the_memory_nor_raise_the_limit_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "MAX_REMEMBERED", 100)
    limits = OneWorker()
    assert refused(limits, QUERY, QUERY._replace(author=OTHER)) == ["", ""]
    for number in range(1000):
        refused(limits, asked(number.to_bytes(64)))
    assert refused(limits, QUERY, QUERY._replace(author=b"another")) == [REPEATED, TOO_MANY]
    assert len(limits._buckets) <= 101
    assert len(limits.shared._known) <= 101


def test_overlong_keys_take_no_more_memory_than_others(limits: OneWorker) -> None:
    """The row of a bucket cannot have a key of more than some 2 700 bytes."""
    shown = [asked(bytes([number]) * 100_000, size=100_300) for number in range(4)]
    assert TOO_MANY not in refused(limits, *shown)
    assert all(isinstance(name, str) or len(name) == 32 for name in limits._buckets._full_at)
    assert all(len(name) < 32 for name in limits.shared._known._full_at)


def test_a_query_that_names_many_keys_is_charged_to_none_of_their_limits(limits: OneWorker) -> None:
    """Otherwise two queries a second about a hundred users would block all other queries about them."""
    victims = [number.to_bytes(64) for number in range(100)]
    for number in range(10):
        author = bytes([number]) * 33
        refused(limits, asked(CAROL, *victims, author=author))  # on the topic of another key in the query
        refused(limits, asked(*victims, author=author, on=BOB))  # on that of a key that is not in the query
    assert refused(limits, asked(CAROL, author=OTHER)) == [TOO_MANY]
    assert not any(refused(limits, *(asked(victim, author=OTHER) for victim in victims)))


def test_a_copy_of_a_query_on_a_topic_beyond_its_limit_does_not_silence_the_query(limits: OneWorker) -> None:
    for _ in range(10):
        refused(limits, asked(CAROL, author=author()))
    copy, query = asked(ALICE, author=OTHER, on=CAROL), asked(ALICE, author=OTHER)
    assert refused(limits, copy, query, query) == [TOO_MANY, "", REPEATED]
