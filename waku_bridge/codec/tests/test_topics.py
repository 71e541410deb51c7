"""Content topics and the numbers in them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waku_bridge.codec import topics


@given(st.integers(0, 2**32 - 1))
def test_reads_the_number_that_it_writes(topic):
    assert topics.number(topics.of_number(topic)) == topic


def test_the_content_topic_of_a_name_has_the_number_of_its_hash():
    assert topics.content_topic("a name") == topics.of_number(int.from_bytes(topics.topic("a name")))


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
    assert topics.number(other) is None
