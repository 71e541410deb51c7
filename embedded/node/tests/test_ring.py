"""The ring. What it says of nwaku is by the source of `message_cache.nim`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedded.node.ring import Ring
from waku_bridge.messages import WakuMessage

A, B, UNKNOWN = "/waku/2/rs/16/32", "/waku/2/rs/16/64", "/waku/2/rs/16/1"


def message(timestamp: int, payload: bytes = b"x") -> WakuMessage:
    return WakuMessage(payload=payload, content_topic="/waku/1/0x75b8b8f6/rfc26", timestamp_ns=timestamp)


def timestamps(messages: list[WakuMessage] | None) -> list[int] | None:
    return messages and [each.timestamp_ns for each in messages]


@pytest.mark.parametrize(
    ("capacity", "arrivals", "kept_on_a", "kept_on_b"),
    [
        (3, [(A, 1), (A, 2), (B, 3)], [1, 2], [3]),
        (3, [(B, 1), (A, 2), (A, 3), (A, 4)], [2, 3, 4], []),  # a busy topic evicts a quiet one's message
        (2, [(A, 5), (A, 6), (A, 1)], [6, 1], []),  # the new message stays although it is the oldest …
        (2, [(A, 5), (A, 6), (A, 1), (A, 7)], [6, 7], []),  # … and is dropped next
        (2, [(A, 99), (A, 1), (A, 2), (A, 3)], [99, 3], []),  # a message from the future stays
        (2, [(A, 1), (A, 1)], [1], []),  # an exact duplicate
        (2, [(A, 1), (B, 1)], [1], []),  # an exact duplicate on another topic
        (2, [(UNKNOWN, 1)], [], []),
    ],
)
def test_keeps_the_same_messages_as_nwaku(capacity, arrivals, kept_on_a, kept_on_b):
    ring = Ring(capacity, [A, B])
    for topic, timestamp in arrivals:
        ring.add(topic, message(timestamp))
    assert (timestamps(ring.drain(A)) or []) == kept_on_a
    assert (timestamps(ring.drain(B)) or []) == kept_on_b


def test_returns_the_message_that_was_dropped():
    ring = Ring(1, [A])
    assert ring.add(A, message(1)) is None
    assert ring.add(A, message(2)) == message(1)


def test_gives_up_the_first_arrival_of_equal_timestamps():
    ring = Ring(2, [A])
    for payload in (b"a", b"b", b"c"):
        ring.add(A, message(1, payload))
    assert [each.payload for each in ring.drain(A)] == [b"b", b"c"]


def test_draining_removes_and_remembers_nothing():
    ring = Ring(2, [A])
    ring.add(A, message(1))
    assert timestamps(ring.drain(A)) == [1]
    assert ring.drain(A) == []
    ring.add(A, message(1))
    assert timestamps(ring.drain(A)) == [1]


def test_draining_a_topic_without_subscription_is_none_and_not_empty():
    assert Ring(2, [A]).drain(B) is None


def test_unsubscribing_drops_the_messages_of_that_topic_only():
    ring = Ring(5, [A, B])
    ring.add(A, message(1))
    ring.add(B, message(2))
    ring.unsubscribe(A)
    ring.unsubscribe(A)
    assert (len(ring), ring.topics, timestamps(ring.drain(B))) == (1, frozenset({B}), [2])


class ListRing:
    """nwaku's algorithm in its simplest form: one list, searched from the front."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.entries: list[tuple[str, WakuMessage]] = []

    def add(self, topic: str, new: WakuMessage) -> None:
        if any(old == new for _, old in self.entries):
            return
        if len(self.entries) >= self.capacity:
            self.entries.remove(min(self.entries, key=lambda entry: entry[1].timestamp_ns))
        self.entries.append((topic, new))

    def drain(self, topic: str) -> list[WakuMessage]:
        drained = [old for on, old in self.entries if on == topic]
        self.entries = [entry for entry in self.entries if entry[0] != topic]
        return drained


arrival = st.tuples(st.just("add"), st.sampled_from([A, B]), st.integers(-5, 5))
reading = st.tuples(st.just("drain"), st.sampled_from([A, B]), st.just(0))


@given(st.integers(1, 6), st.lists(st.one_of(arrival, arrival, arrival, reading), max_size=60))
def test_behaves_like_nwakus_list_under_any_sequence(capacity, steps):
    ring, model = Ring(capacity, [A, B]), ListRing(capacity)
    for act, topic, timestamp in steps:
        if act == "add":
            ring.add(topic, message(timestamp))
            model.add(topic, message(timestamp))
        else:
            assert ring.drain(topic) == model.drain(topic)
        assert len(ring) == len(model.entries) <= capacity
