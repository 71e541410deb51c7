"""The limits of a frame: its shortest form, and its largest data."""

import pytest

from waku_bridge.codec import frame
from waku_bridge.codec.errors import BadFrame
from waku_bridge.codec.keys import not_all_zero, sign
from waku_bridge.codec.tests.examples import CLIENT, repeatable


def signed(head):
    return head + sign(head, CLIENT.private_key)


def test_a_signed_frame_has_flags_and_a_length_at_least():
    data, signer = frame.parse(signed(b"\x05\x00"))
    assert (data, signer.format()) == (b"", CLIENT.pub33)
    with pytest.raises(BadFrame):
        frame.parse(signed(b"\x04"))


def test_holds_as_much_data_as_three_bytes_of_length_can_express():
    most = bytes(frame.MAX_DATA_BYTES)
    assert frame.parse(frame.build(most, None, repeatable())) == (most, None)
    with pytest.raises(ValueError, match="too much data"):
        frame.build(most + b"\0", None, repeatable())


def test_refuses_a_source_of_randomness_that_returns_zeros():
    with pytest.raises(ValueError, match="zeros only"):
        not_all_zero(bytes, 32)
