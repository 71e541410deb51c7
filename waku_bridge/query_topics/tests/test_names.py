"""Content topics and the numbers in them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waku_bridge.codec import topics
from waku_bridge.query_topics.topic_set import CONTENT_TOPIC_LENGTH, content_topic, number


@given(st.integers(0, 2**32 - 1))
def test_reads_the_number_that_it_writes(topic):
    assert number(content_topic(topic)) == topic
    assert len(content_topic(topic)) == CONTENT_TOPIC_LENGTH


def test_writes_topics_as_the_codec_does():
    assert content_topic(int.from_bytes(topics.topic("a name"))) == topics.content_topic("a name")


@pytest.mark.parametrize(
    "other",
    [
        "",
        "/waku/1/0x0123abcd/rfc27",
        "/waku/2/0x0123abcd/rfc26",
        "/waku/1/0x0123ABCD/rfc26",
        "/waku/1/0x+123abcd/rfc26",
        "/waku/1/0x-123abcd/rfc26",
        "/waku/1/0x 123abcd/rfc26",
        "/waku/1/0x1_23_4_5/rfc26",
        "/waku/1/0x\u0660123abcd/rfc26",
        "/waku/1/0x0123abcd/rfc26/",
        "/waku/1/0x123abcd/rfc26",
    ],
)
def test_another_spelling_is_another_topic(other):
    assert number(other) is None
