"""Fuzz targets of the XMPP bridge."""

from contextlib import suppress

from xmpp_bridge.codec.elements import parse
from xmpp_bridge.codec.errors import BrokenStream, MalformedStanza
from xmpp_bridge.codec.stanzas import decode, decode_too_large
from xmpp_bridge.codec.stream import Received, Stream, TooLarge

HEADER = b"<stream:stream xmlns='jabber:component:accept' xmlns:stream='http://etherx.jabber.org/streams' id='1'>"


def stanzas(data: bytes) -> None:
    """Read one anonymous stanza."""
    with suppress(MalformedStanza, BrokenStream):
        decode(parse(data))


def stream(data: bytes) -> None:
    """Read a stream whole and in two pieces: its stanzas are the same, wherever it is cut."""
    at = data[0] if data else 0
    assert _read(data[1:]) == _read(data[1 : at + 1], data[at + 1 :])


def _read(*pieces: bytes) -> list[str]:
    """Return the stanzas of the stream, or nothing when it breaks, as it may break before or after an earlier stanza is
    read.
    """
    reader = Stream()
    events = list(reader.feed(HEADER))
    try:
        for piece in pieces:
            events += reader.feed(piece)
    except BrokenStream:
        return []
    return [_first_line(event) for event in events]


def _first_line(event: object) -> str:
    if isinstance(event, Received):
        return repr(decode(event.stanza))
    if isinstance(event, TooLarge):
        return repr(decode_too_large(event.name, event.attributes))
    return repr(event)
