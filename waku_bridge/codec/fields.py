"""Counting the fields of a protobuf message without parsing it, so that a body of a hundred thousand empty entries
costs as much as one with as many as are allowed.
"""


def has_more_fields(data: bytes, most: int) -> bool:
    """Return whether a message has more fields than that. What is not well-formed is left to the parser to refuse."""
    at = count = 0
    try:
        while at < len(data) and count <= most:
            at = _skip(data, at)
            count += 1
    except (IndexError, ValueError):
        return False
    return count > most


def _skip(data: bytes, at: int) -> int:
    """Return where the field that begins here ends.

    Where a group begins and where it ends count as a field each. Left to the parser, one group before a hundred
    thousand entries would hide them from the count.

    Raises IndexError beyond the end, and ValueError for what is no wire type.
    """
    tag, at = _varint(data, at)
    match tag & 7:
        case 0:
            return _varint(data, at)[1]
        case 1:
            return at + 8
        case 2:
            length, at = _varint(data, at)
            return at + length
        case 3 | 4:
            return at
        case 5:
            return at + 4
    raise ValueError("no wire type at all")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[at]) & 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise ValueError("longer than a varint is")
    return value | byte << shift, at + 1
