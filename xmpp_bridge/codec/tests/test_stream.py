"""The stream of a component: recorded openings, whole, byte by byte and in any pieces, and what strangers may send."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmpp_bridge.codec import stream as stream_module
from xmpp_bridge.codec.elements import parse
from xmpp_bridge.codec.errors import BrokenStream
from xmpp_bridge.codec.limits import MAX_DEPTH, MAX_STANZA_BYTES
from xmpp_bridge.codec.stream import (
    Closed,
    Event,
    Failed,
    Opened,
    Ready,
    Received,
    Stream,
    TooLarge,
    handshake,
    opening,
)
from xmpp_bridge.codec.tests.recorded import STANZAS, STREAMS, same_tree, stanza_bytes, transcript

HEADER = (
    b"<?xml version='1.0'?><stream:stream from='push.montague.test' id='abc' xmlns='jabber:component:accept' "
    b"xmlns:stream='http://etherx.jabber.org/streams'>"
)
CONDITIONS = {"ok": None, "conflict": "conflict", "unknown-host": "host-unknown", "wrong-secret": "not-authorized"}


def named(entry: dict[str, Any]) -> str:
    return entry["file"].removesuffix(".txt")


def feed(data: bytes, *cuts: int) -> list[Event]:
    stream, events, start = Stream(), [], 0
    for cut in (*sorted(cuts), len(data)):
        events += stream.feed(data[start:cut])
        start = cut
    return events


def known_as(events: list[Event]) -> list[object]:
    return [each.stanza.get("id") if isinstance(each, Received) else each for each in events]


@pytest.mark.parametrize("entry", STREAMS, ids=named)
def test_a_recorded_opening_is_understood(entry: dict[str, Any]) -> None:
    turns = transcript(entry["file"])
    heard = "".join(said for who, said in turns if who == "S").encode()
    condition = next(c for name, c in CONDITIONS.items() if entry["file"].endswith(f"{name}.txt"))
    ends: list[Event] = [Ready()] if condition is None else [Failed(condition), Closed()]
    assert feed(heard) == feed(heard, *range(len(heard))) == [Opened(entry["stream_id"]), *ends]


@pytest.mark.parametrize("entry", [e for e in STREAMS if "handshake" in e], ids=named)
def test_the_handshake_is_the_recorded_one(entry: dict[str, Any]) -> None:
    ours = handshake(entry["stream_id"], entry["secret_used"]).decode()
    said = [said for who, said in transcript(entry["file"]) if who == "C"]
    assert ours == f"<handshake>{entry['handshake']}</handshake>" == said[1]


def test_the_opening_is_the_recorded_one() -> None:
    said = transcript("prosody13-component-stream-ok.txt")[0][1].encode()
    closing = b"</stream:stream>"
    assert same_tree(parse(opening("push.montague.test") + closing), parse(said + closing))


@pytest.mark.parametrize("entry", STANZAS, ids=lambda entry: entry["file"])
def test_a_stanza_comes_whole_however_it_is_cut(entry: dict[str, Any]) -> None:
    data = HEADER + stanza_bytes(entry["file"]) + b" "
    for cuts in ((), range(len(data)), range(0, len(data), 7)):
        [opened, received] = feed(data, *cuts)
        assert opened == Opened("abc")
        assert isinstance(received, Received)
        assert received.stanza.get("id") == entry["id"]


@given(st.data())
def test_any_cut_gives_the_same(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from([e["file"] for e in STANZAS]), max_size=4))
    sent = HEADER + b"\n".join(map(stanza_bytes, names)) + b"</stream:stream>"
    cuts = data.draw(st.lists(st.integers(0, len(sent)), max_size=8))
    assert known_as(feed(sent, *cuts)) == known_as(feed(sent))


@given(st.binary(max_size=200))
def test_whatever_comes_is_an_event_or_a_broken_stream(data: bytes) -> None:
    stream = Stream()
    try:
        stream.feed(HEADER)
        stream.feed(data)
    except BrokenStream:
        pass


@pytest.mark.parametrize(
    "filling",
    [
        b"<body>" + b"x" * MAX_STANZA_BYTES + b"</body>",
        b"<a/>" * MAX_STANZA_BYTES,
        b"<a>" * (MAX_DEPTH + 1) + b"</a>" * (MAX_DEPTH + 1),
    ],
    ids=["long", "many", "deep"],
)
def test_a_stanza_beyond_the_limits_is_not_built_and_the_next_one_comes(filling: bytes) -> None:
    large = b"<message id='big' from='a.test' to='b.test'>" + filling + b"</message>"
    data = HEADER + large + b"<message id='next'/>"
    [_, too_large, received] = feed(data, *range(0, len(data), 4096))
    assert too_large == TooLarge("message", {"id": "big", "from": "a.test", "to": "b.test"})
    assert isinstance(received, Received)


def test_a_stanza_at_the_limit_is_built() -> None:
    head, tail = b"<message id='m'><body>", b"</body></message>"
    filling = b"x" * (MAX_STANZA_BYTES - len(head) - len(b"</body>"))
    assert isinstance(feed(HEADER + head + filling + tail)[1], Received)


@pytest.mark.parametrize(
    "bad",
    [
        b"<!DOCTYPE a [<!ENTITY x 'y'>]>" + HEADER.partition(b"?>")[2],
        HEADER + b"<message>&undefined;</message>",
        HEADER + b"<message></iq>",
        HEADER + b"\xff",
        b"HTTP/1.1 400 Bad Request\r\n",
        b"<html>",
        b"<?xml version='1.0' encoding='nonsense'?><a>",
    ],
    ids=["dtd", "entity", "mismatch", "not-utf8", "http", "html", "encoding"],
)
def test_what_is_no_stream_breaks_it(bad: bytes) -> None:
    with pytest.raises(BrokenStream):
        feed(bad)


def test_another_parser_takes_over_between_two_stanzas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "ROTATED_AFTER_BYTES", 1)
    stream = Stream()
    stanzas = [f"<message id='{n}' a='/>'><body>&lt;{n}&gt;</body></message>".encode() for n in range(50)]
    parsers = set()
    heard: list[Event] = []
    for piece in [HEADER, b"<handshake/>", *stanzas, b"<iq id='half' x='a>", b"b'/>", b" ", b"<iq id='e'/>"]:
        heard += stream.feed(piece)
        parsers.add(id(stream._parser))
    assert known_as(heard) == [Opened("abc"), Ready(), *(str(n) for n in range(50)), "half", "e"]
    assert len(parsers) > 1
