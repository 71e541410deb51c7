"""The compact set of 4-byte topics behaves as a set, in a tenth of the memory."""

import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.budget import examples
from waku_bridge.query_topics.reader import TopicSet

# Few values of the upper bytes, so that many topics share an array.
CROWDED = st.builds(lambda upper, lower: upper << 16 | lower, st.integers(0, 2), st.integers(0, 9))
TOPICS = st.integers(0, 2**32 - 1) | CROWDED
few = settings(max_examples=examples(20))  # going through a set takes some milliseconds, however few it holds


@few
@given(st.lists(TOPICS), st.lists(TOPICS))
def test_a_set_holds_the_added_topics_and_no_others(added, others):
    topics, expected = TopicSet(), set()
    for topic in added:
        assert topics.add(topic) == (topic not in expected)
        expected.add(topic)
    assert list(topics) == sorted(expected)
    assert len(topics) == len(expected)
    assert all((topic in topics) == (topic in expected) for topic in added + others)


@few
@given(st.sets(CROWDED), st.lists(TOPICS))
def test_a_discarded_topic_is_not_in_the_set(added, discarded):
    topics = TopicSet()
    for topic in added:
        topics.add(topic)
    for topic in discarded:
        topics.discard(topic)
    assert list(topics) == sorted(added.difference(discarded))
    assert len(topics) == len(added.difference(discarded))


def test_a_lookup_during_a_removal_does_not_see_an_array_shrink():
    topics = TopicSet()
    topics.add(5)
    asked = topics._lower[0]
    topics.discard(5)
    assert list(asked) == [5]


@few
@given(st.sets(CROWDED))
def test_a_filled_set_equals_one_of_added_topics(added):
    topics = TopicSet()
    for upper in range(4):
        lower = sorted(topic & 0xFFFF for topic in added if topic >> 16 == upper)
        topics.fill(upper, b"".join(number.to_bytes(2) for number in lower))
    assert list(topics) == sorted(added)
    assert len(topics) == len(added)
    assert all(topic in topics for topic in added)


def test_filling_again_replaces_the_topics():
    topics = TopicSet()
    topics.fill(5, b"\x00\x01\x00\x02")
    topics.fill(5, b"\x00\x03")
    assert (list(topics), len(topics)) == ([5 << 16 | 3], 1)


def test_many_topics_in_one_array_take_two_bytes_each():
    """An attacker who makes up names for one array can make it longer, and no more than that."""
    topics = TopicSet()
    for lower in range(2**16):
        topics.add(lower)
    assert len(topics) == 2**16
    assert sys.getsizeof(topics._lower[0]) < 2**16 * 2 * 1.2
