from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedded.node.archive import Archive, QueryRefusedError, is_admissible
from embedded.node.store_query import StoreQuery
from waku_bridge.codec.topics import message_hash
from waku_bridge.messages import WakuMessage

SHARD, TOPIC = "/waku/2/rs/16/32", "/waku/1/0x75b8b8f6/rfc26"
SECOND = 10**9


def message(timestamp: int, payload: bytes = b"x", topic: str = TOPIC) -> WakuMessage:
    return WakuMessage(payload=payload, content_topic=topic, timestamp_ns=timestamp)


def store(archive: Archive, *messages: WakuMessage, shard: str = SHARD) -> None:
    for each in messages:
        archive.insert(message_hash(shard, each), shard, each)


def found(archive: Archive, query: StoreQuery) -> list[int]:
    return [each.message.timestamp_ns for each in archive.find(query).messages]


@pytest.fixture
def archive() -> Iterator[Archive]:
    with closing(Archive(None)) as archive:
        yield archive


def pages(archive: Archive, query: StoreQuery) -> Iterator[list[bytes]]:
    while True:
        page = archive.find(query)
        yield [each.message_hash for each in page.messages]
        if page.cursor is None:
            return
        query = replace(query, cursor=page.cursor)


@given(st.lists(st.tuples(st.integers(1, 6), st.binary(min_size=1, max_size=1)), unique=True, max_size=25), st.data())
def test_pages_in_either_direction_hold_everything_once_and_in_order(entries, data):
    messages = [message(timestamp, payload) for timestamp, payload in entries]
    expected = sorted((each.timestamp_ns, message_hash(SHARD, each)) for each in messages)
    size = data.draw(st.integers(1, 7))
    with closing(Archive(None)) as archive:
        store(archive, *messages)
        forward = list(pages(archive, StoreQuery(page_size=size)))
        backward = list(pages(archive, StoreQuery(page_size=size, is_forward=False)))
    assert [each for page in forward for each in page] == [digest for _, digest in expected]
    assert [each for page in reversed(backward) for each in page] == [digest for _, digest in expected]
    assert all(len(page) == size for page in forward[:-1] + backward[:-1])


def test_has_no_cursor_when_the_page_is_full_and_nothing_follows(archive):
    store(archive, message(1), message(2))
    assert archive.find(StoreQuery(page_size=2)).cursor is None
    assert archive.find(StoreQuery(page_size=1)).cursor == message_hash(SHARD, message(1))


def test_never_shows_a_message_that_arrived_behind_the_cursor(archive):
    store(archive, message(2), message(4))
    cursor = archive.find(StoreQuery(page_size=1)).cursor
    store(archive, message(1), message(3))
    assert found(archive, StoreQuery(cursor=cursor)) == [3, 4]


@pytest.mark.parametrize(
    ("query", "timestamps"),
    [
        (StoreQuery(start_ns=2, end_ns=3), [2, 3]),  # both inclusive
        (StoreQuery(pubsub_topic="/waku/2/rs/16/64"), [4]),
        (StoreQuery(content_topics=("/other", "/unknown")), [3]),
        (StoreQuery(content_topics=(TOPIC,), end_ns=1), [1]),
        (StoreQuery(hashes=(message_hash(SHARD, message(2)), bytes(32))), [2]),
        (StoreQuery(hashes=(message_hash(SHARD, message(2)),), start_ns=3), []),
        (StoreQuery(content_topics=tuple(map(str, range(11)))), []),  # eleven are fine on the first page
    ],
)
def test_finds_only_matching_messages(archive, query, timestamps):
    store(archive, message(1), message(2), message(3, topic="/other"))
    store(archive, message(4), shard="/waku/2/rs/16/64")
    assert found(archive, query) == timestamps


def test_refuses_eleven_content_topics_on_a_page_with_a_cursor(archive):
    store(archive, message(1))
    cursor = message_hash(SHARD, message(1))
    topics = tuple(map(str, range(11)))
    assert found(archive, StoreQuery(cursor=cursor, content_topics=topics[:10])) == []
    with pytest.raises(QueryRefusedError, match="too many content topics"):
        archive.find(StoreQuery(cursor=cursor, content_topics=topics))


def test_stores_a_message_once(archive):
    store(archive, message(1), message(1))
    assert archive.count() == 1


def test_forgets_messages_older_than_the_retention(archive):
    store(archive, message(1), message(2), message(3))
    archive.forget_before(2)
    assert found(archive, StoreQuery()) == [2, 3]


def test_gives_back_the_message_as_it_was(archive):
    original = WakuMessage(bytes(range(256)), "/ä/1/b/c", -5, version=7, meta=b"\0m")
    store(archive, original)
    assert archive.find(StoreQuery()).messages[0].message == original


@pytest.mark.parametrize(
    ("offset_ns", "is_ephemeral", "is_admitted"),
    [
        (0, False, True),
        (20 * SECOND, False, True),
        (-20 * SECOND, False, True),
        (20 * SECOND + 1, False, False),
        (-20 * SECOND - 1, False, False),
        (0, True, False),
    ],
)
def test_admits_messages_that_are_not_ephemeral_and_within_20_seconds(offset_ns, is_ephemeral, is_admitted):
    now_ns = 1_700_000_000 * SECOND
    offered = replace(message(now_ns + offset_ns), ephemeral=is_ephemeral)
    assert is_admissible(offered, now_ns) is is_admitted
