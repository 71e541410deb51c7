"""Stream of a component: recorded openings, whole, byte by byte and in any pieces, and hostile input."""

import subprocess
import sys
from contextlib import suppress
from itertools import chain
from typing import Any
from unittest.mock import patch
from xml.etree.ElementTree import Element, ParseError, fromstring, tostring

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from xmpp_bridge.codec import stream as stream_module
from xmpp_bridge.codec.elements import BrokenStream, local_name, parse
from xmpp_bridge.codec.stream import (
    CLOSING,
    MAX_STANZA_BYTES,
    MAX_TAG_BYTES,
    MAX_TAGS,
    Closed,
    Event,
    Opened,
    Ready,
    Received,
    Stream,
    handshake,
    opening,
)
from xmpp_bridge.codec.tests.test_recorded import STANZAS, STREAMS, same_tree, stanza_bytes, transcript

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


@pytest.mark.requirement("XB1", "X1")
@pytest.mark.parametrize("entry", STREAMS, ids=named)
def test_a_recorded_opening_is_understood(entry: dict[str, Any]) -> None:
    lines = transcript(entry["file"])
    received = "".join(shown for who, shown in lines if who == "S").encode()
    condition = next(c for name, c in CONDITIONS.items() if entry["file"].endswith(f"{name}.txt"))
    ends: list[Event] = [Ready()] if condition is None else [Closed(condition), Closed()]
    assert feed(received) == feed(received, *range(len(received))) == [Opened(entry["stream_id"]), *ends]


@pytest.mark.requirement("XB1", "X1")
@pytest.mark.parametrize("entry", [e for e in STREAMS if "handshake" in e], ids=named)
def test_the_handshake_is_the_recorded_one(entry: dict[str, Any]) -> None:
    ours = handshake(entry["stream_id"], entry["secret_used"]).decode()
    shown = [shown for who, shown in transcript(entry["file"]) if who == "C"]
    assert ours == f"<handshake>{entry['handshake']}</handshake>" == shown[1]


def test_the_opening_is_the_recorded_one() -> None:
    shown = transcript("prosody13-component-stream-ok.txt")[0][1].encode()
    [ours, recorded] = (each.partition(b"?>")[2] for each in (opening("push.montague.test"), shown))
    assert same_tree(parse(ours + CLOSING), parse(recorded + CLOSING))


@given(st.data())
def test_stanzas_come_whole_however_they_are_cut(data: st.DataObject) -> None:
    entries = data.draw(st.lists(st.sampled_from(STANZAS), max_size=3))
    sent = HEADER + b"\n".join(stanza_bytes(each["file"]) for each in entries) + b"</stream:stream>"
    cuts = data.draw(st.lists(st.integers(0, len(sent)), max_size=8) | st.just(range(len(sent))))
    assert known_as(feed(sent, *cuts)) == [Opened("abc"), *(each["id"] for each in entries), Closed()]


@given(st.binary(max_size=200))
def test_any_bytes_are_an_event_or_a_broken_stream(data: bytes) -> None:
    with suppress(BrokenStream):
        feed(HEADER + data)


@pytest.mark.requirement("XB19")
@pytest.mark.parametrize(
    "filling",
    [
        b"<body>" + b"x" * MAX_STANZA_BYTES + b"</body>",
        b"<a/>" * MAX_STANZA_BYTES,
        b"<a>" * MAX_TAGS + b"</a>" * MAX_TAGS,
    ],
    ids=["long", "many", "deep"],
)
def test_a_stanza_beyond_the_limits_is_not_built_and_the_next_one_comes(filling: bytes) -> None:
    large = b"<message id='big' from='a.test' to='b.test'>" + filling + b"</message>"
    data = HEADER + large + b"<message id='next'/>"
    [_, too_large, received] = feed(data, *range(0, len(data), 4096))
    assert isinstance(too_large, Received)
    assert too_large.is_too_large
    assert local_name(too_large.stanza) == "message"
    assert (too_large.stanza.attrib, len(too_large.stanza)) == ({"id": "big", "from": "a.test", "to": "b.test"}, 0)
    assert too_large.size == len("<message id='big' from='a.test' to='b.test'/>")
    assert isinstance(received, Received)


def test_a_tag_that_comes_in_small_pieces_is_not_read_again_for_each() -> None:
    stream = Stream()
    with patch.object(Stream, "_next", autospec=True, side_effect=Stream._next) as read:
        events = [*stream.feed(HEADER + b"<message id='")]
        for _ in range(300):
            events += stream.feed(b"x" * 1400)
        events += stream.feed(b"'/>")
    assert read.call_count == 4  # each stanza, and that there is no further one
    assert [(type(event), getattr(event, "is_too_large", False)) for event in events] == [
        (Opened, False),
        (Received, True),
    ]


@pytest.mark.parametrize(
    "bad",
    [
        b"<!DOCTYPE a [<!ENTITY x 'y'>]>" + HEADER.partition(b"?>")[2],
        HEADER + b"\xff",
        b"HTTP/1.1 400 Bad Request\r\n",
        b"<html>",
        *(
            HEADER + each + b"<a/>"
            for each in (b"<!DOCTYPE a>", b"<!-- -->", b"<?a?>", b"<![CDATA[a]]>", b"<a b='", b"</a")
        ),
        *(HEADER + each for each in (b"<></>", b"< a/>", b"</>", b"</a>", b"</ stream:stream>")),
        b"<?xml version='1.0' encoding='nonsense'?><a>",
    ],
    ids=[
        *("dtd", "not-utf8", "http", "html"),
        *("dtd-inside", "comment", "instruction", "section", "open", "closing"),
        *("no-name", "space-before", "no-name-closed", "closes-another", "space-closed", "encoding"),
    ],
)
def test_bytes_that_are_no_stream_break_it(bad: bytes) -> None:
    with pytest.raises(BrokenStream):
        feed(bad)


# Our parser refuses all of these. Prosody itself writes and passes on the first three.
REFUSED = {
    "brace": b"<message to='push.test'><x xmlns='a}b'/></message>",
    "namespace-of-xml": b"<message><foo xmlns='http://www.w3.org/XML/1998/namespace'/></message>",
    "brace-of-attribute": b"<message><x a:b='1' xmlns:a='c}d'/></message>",
    "entity": b"<message>&undefined;</message>",
    "mismatch": b"<message></iq>",
    "no-character": b"<message>&#1;</message>",
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_a_stanza_that_our_parser_refuses_ends_nothing(refused: bytes) -> None:
    before, after = b"<message id='1'/>", b"<iq id='2'/>"
    _, first, second, third = feed(HEADER + before + refused + after)
    assert (first.stanza.get("id"), second.stanza.tag, third.stanza.get("id")) == ("1", "", "2")
    large = b"<message xmlns:a='c}d' a:b='1'>" + b"x" * MAX_STANZA_BYTES + b"</message>"  # refused by its first tag
    _, second, third = feed(HEADER + large + after)
    assert (second.stanza.tag, third.stanza.get("id")) == ("", "2")


@pytest.mark.parametrize(
    ("stanza", "text"),
    [
        (b"<a id='1' b='/>' c=\"x>'\">/&gt;></a>", "/>>"),
        (b"<a id='1'><![CDATA[</a><b>]] >]]></a>", "</a><b>]] >"),
        (b"<a id='1' />", None),
        (b"<a\n\tid = '1'\r\n>1</a >", "1"),
        (b"<a id='1'>1<a/><a><a /></a>2</a>", "1"),
    ],
    ids=["quotes", "section", "empty", "spaces", "nested"],
)
def test_the_end_of_a_stanza_is_found_behind_quotes_sections_and_nested_elements(
    stanza: bytes, text: str | None
) -> None:
    data = HEADER + stanza + b"<b id='2'/>" + CLOSING
    for cuts in ((), range(len(data))):
        [_, received, other, closed] = feed(data, *cuts)
        assert isinstance(received, Received)
        assert isinstance(other, Received)
        assert (received.stanza.get("id"), received.stanza.text) == ("1", text)
        assert (other.stanza.get("id"), closed) == ("2", Closed())


# Pieces of well-formed and broken XML. RFC 6120 (11.1) forbids those of KEPT_OUT on a stream.
TOKENS = ["<a>", "</a>", "<b c='>'>", "</b>", "<a/>", '<b c="/>"/>', "<![CDATA[</a>]]>", "text", " ", "&lt;", ">", "]]"]
OPENING, SECTIONS = ["<m>", "<a>", "<b c='>'>"], ["<![CDATA[</a>]]>"]
KEPT_OUT = ["<!-- -->", "<?a?>", "<!DOCTYPE a>"]


def alone(tokens: list[str]) -> list[Element]:
    """Return the readable stanzas of a stream that is no XML as a whole: those that are XML by themselves.

    A stanza ends where its closing tags are as many as its opening ones. Text between two stanzas ends the stream.
    """
    found: list[Element] = []
    stanza, depth = "", 0
    for token in tokens:
        is_closing = token.startswith("</")
        if not depth and (is_closing or not token.startswith("<") or token in SECTIONS) and token != " ":
            return []
        stanza += token
        depth += -1 if is_closing else token in OPENING
        if not depth:
            with suppress(ParseError):
                found += fromstring(HEADER + stanza.encode() + CLOSING)  # noqa: S314 - made here
            stanza = ""
    return found


@given(st.lists(st.sampled_from([*TOKENS, *KEPT_OUT]), max_size=12))
@example(["</a>", "<a/>", "<a>"])
def test_a_stanza_is_what_a_parser_of_the_whole_stream_reads(tokens: list[str]) -> None:
    data = HEADER + b"<m>" + "".join(tokens).encode() + b"</m>" + CLOSING
    try:
        trees = [*fromstring(data)]  # noqa: S314 - made here
    except ParseError:
        trees = alone(["<m>", *tokens, "</m>"])
    try:
        read = [each.stanza for each in feed(data) if isinstance(each, Received) and each.stanza.tag]
    except BrokenStream:
        read = []
    texts_between = any(each.tail for each in trees)
    is_clean = not texts_between and not set(tokens) & set(KEPT_OUT)
    assert [tostring(each) for each in read] == [tostring(each) for each in trees if is_clean]


GROWTH = """
import os, resource, sys
from xmpp_bridge.codec.stream import Stream

def memory():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

stream, header, names = Stream(), sys.argv[1].encode(), iter(range(10**9))
list(stream.feed(header))
begun = memory()
for _ in range(400):
    tags = b"".join(b"<n%d a%d='' xmlns='u:%d'/>" % ((next(names),) * 3) for _ in range(400))
    for data in (b"<message>" + tags + b"</message>", b"<message>" + tags * 8 + b"</message>"):
        list(stream.feed(data + data[: len(data) // 2]))
        list(stream.feed(data[len(data) // 2 :]))
print(memory() - begun)
"""


def test_made_up_names_are_not_kept_in_memory() -> None:
    """The stream gets 60 MB of names, in stanzas within and beyond the limits. Every read ends inside a stanza."""
    grown = subprocess.run([sys.executable, "-c", GROWTH, HEADER.decode()], check=True, capture_output=True, text=True)
    assert int(grown.stdout) < 8_000_000


def test_events_before_a_fault_are_reported() -> None:
    received: list[Event] = []
    with pytest.raises(BrokenStream):
        received.extend(Stream().feed(HEADER + b"<a id='1'/><b id='2'></b><!-- --><e id='4'/>"))
    assert known_as(received) == [Opened("abc"), "1", "2"]


def test_a_tag_that_never_ends_breaks_the_stream() -> None:
    stream = Stream()
    list(stream.feed(HEADER + b"<message a='"))
    long = (b">" * 4096 for _ in range(MAX_TAG_BYTES // 4096 + 1))
    with pytest.raises(BrokenStream):
        list(chain.from_iterable(map(stream.feed, long)))


def test_the_cost_of_a_stanza_is_bounded_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a stanza beyond the limit, only the first tag is parsed."""
    parsed: list[int] = []

    def counting(data: bytes) -> Element:
        parsed.append(len(data))
        return parse(data)

    monkeypatch.setattr(stream_module, "parse", counting)
    feed(HEADER + b"<message>" + b"<a></a>" * 200_000 + b"</message>", *range(0, 1_400_000, 65_536))
    assert len(parsed) == 2
    assert max(parsed) < 1000
