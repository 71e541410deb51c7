"""The count of protobuf fields. A field that is skipped wrongly ends in 07, which begins no field."""

import pytest

from waku_bridge.codec.bodies import has_more_fields

WRONG = b"\x07"


@pytest.mark.parametrize(
    "field",
    [
        b"\x08\x01",
        b"\x08" + b"\xff" * 9 + b"\x01",  # the longest varint
        b"\x09" + WRONG * 8,
        b"\x0a\x02" + WRONG * 2,
        b"\x0a\x81\x81\x01" + WRONG * (1 + (1 << 7) + (1 << 14)),
        b"\x0d" + WRONG * 4,
        b"\x82\x01\x00",  # the number of the field takes two bytes
    ],
    ids=["varint", "long varint", "fixed64", "bytes", "many bytes", "fixed32", "high number"],
)
def test_counts_fields_of_every_wire_type(field):
    assert has_more_fields(field * 3, 2)
    assert not has_more_fields(field * 3, 3)


@pytest.mark.parametrize("rest", [WRONG, b"\x08", b"\x08" + b"\xff" * 10 + b"\x01"])
def test_leaves_malformed_bodies_to_the_parser(rest):
    assert not has_more_fields(b"\x08\x01" + rest, 1)
