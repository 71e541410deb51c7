"""Stream of a component (XEP-0114): bytes in, events out.

    us                                          server
    <stream:stream to='push.domain'>  ───────▶
                                      ◀───────  <stream:stream id='…'>        Opened
    <handshake>sha1(id, secret)</…>   ───────▶
                                      ◀───────  <handshake/>                  Ready
                                      ◀───────  <message/>, <iq/>, …          Received
                                      ◀───────  <stream:error/>               Closed
                                      ◀───────  </stream:stream>              Closed

The end of a stanza is found by counting tags, without a parser. So a stanza beyond a limit costs next to nothing, and
its tree is never built. Each read has a parser of its own, so that no name in a stanza stays in memory. A stanza that
our parser refuses ends nothing: some servers pass on such stanzas, for example with a brace in a namespace.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from xml.etree.ElementTree import Element

from xmpp_bridge.codec.elements import NS, BrokenStream, local_name, parse, write

# Prosody and ejabberd pass on 512 KiB. No push needs a tenth of that.
MAX_STANZA_BYTES = 64 * 1024
# One tag, also of a stanza that is skipped as too large. It is twice the size that any server passes on.
MAX_TAG_BYTES = 1024 * 1024
# Opening and closing tags in one stanza. The largest of our forms has fifty.
MAX_TAGS = 1000
CLOSING = b"</stream:stream>"
# A tag as XML has it: without "<" inside, and with ">" only in a value. Matching takes linear time: the alternatives of
# a group begin with different characters, and characters are matched possessively. No group itself is possessive:
# Python before 3.11.5 (Debian 12 has 3.11.2) fails to match a possessive group in which one alternative fails.
_WITHIN = rb"""<(?![/!?>\s])(?:[^<>"'/]++|"[^<"]*+"|'[^<']*+'|/(?!>))*"""
_END = rb"</[^<>/!?\s][^<>]*+>"
_TAG = rb"(?:(?P<start>%b>)|(?P<empty>%b/>)|(?P<end>%b))?" % (_WITHIN, _WITHIN, _END)
_SPACE, _DECLARATION, _SECTION = rb"[ \t\r\n]*+", b"<?xml", b"<![CDATA["
# By depth: what may precede the next tag, and what else than a tag may be incomplete. Inside a stanza, a tag that opens
# or closes an element without child elements only precedes the next one.
_PATTERNS = (
    (re.compile(rb"%b(?:<\?xml[^<>]*+(?<=\?)>)?%b%b" % (_SPACE, _SPACE, _TAG)), _DECLARATION),
    (re.compile(_SPACE + _TAG), b""),
    (re.compile(rb"(?:[^<]++|%b(?:/>|>[^<]*+%b)|<!\[CDATA\[(?s:.*?)\]\]>)*%b" % (_WITHIN, _END, _TAG)), _SECTION),
)
_FIRST = re.compile(_WITHIN)
_UNFINISHED = re.compile(rb"</?+(?:[^<>/!?\s][^<]*+)?")
_DEEPER = {"start": 1, "empty": 0, None: 0, "end": -1}


@dataclass(frozen=True, slots=True)
class Opened:
    """The server's header. ``id`` is empty when the server has no such component."""

    id: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The handshake was accepted: stanzas flow."""


@dataclass(frozen=True, slots=True)
class Received:
    """One stanza, and the size in bytes of what was kept of it.

    Of a stanza beyond a limit, only the first tag is kept. One that our parser refuses has no name and no sender.
    """

    stanza: Element
    size: int = field(default=0, compare=False)
    is_too_large: bool = False


@dataclass(frozen=True, slots=True)
class Closed:
    """The server closes the stream. ``condition`` is that of its stream error, or `closed` without an error."""

    condition: str = "closed"


Event = Opened | Ready | Received | Closed


class _Stanza(NamedTuple):
    kept: bytes
    is_too_large: bool


def opening(domain: str) -> bytes:
    """Return the header that opens the stream. ``domain`` is the component's own."""
    head = write("stream:stream", xmlns=NS.COMPONENT, to=domain, **{"xmlns:stream": NS.STREAMS})
    return f"<?xml version='1.0'?>{head.removesuffix('/>')}>".encode()


def handshake(stream_id: str, secret: str) -> bytes:
    """Return the handshake, which proves that we have the secret."""
    digest = hashlib.sha1((stream_id + secret).encode(), usedforsecurity=False).hexdigest()
    return write("handshake", text=digest).encode()


class Stream:
    """Reader of the server's side of the stream."""

    def __init__(self) -> None:
        self._header = self._footer = b""  # the server's first tag, and the tag that closes it
        self._data = b""
        self._start = 0  # index in the data at which the unfinished stanza begins
        self._offset = 0  # index in the data up to which tags are counted
        self._depth = 0
        self._first = b""  # the first tag of a stanza beyond a limit, whose data are dropped as they arrive

    def feed(self, data: bytes) -> Iterator[Event]:
        """Yield the events that these bytes complete.

        Raises BrokenStream after the events that precede the fault. Nothing more can be read then.
        """
        is_in_tag = len(self._data) - self._offset > len(_SECTION)
        self._data += data
        if is_in_tag and not (b"<" in data or b">" in data):  # the tag goes on, and is not scanned again for each piece
            self._check_length()
            return
        stanzas: list[_Stanza] = []
        try:
            while found := self._next():
                if isinstance(found, _Stanza):
                    stanzas.append(found)
                else:
                    yield from self._read(stanzas)
                    yield found
                    stanzas = []
        except BrokenStream:
            yield from self._read(stanzas)
            raise
        yield from self._read(stanzas)
        read = self._start if self._depth > 1 and not self._first else self._offset
        self._data = self._data[read:]
        self._start -= read
        self._offset -= read

    def _next(self) -> Event | _Stanza | None:
        """Return the next event or stanza, or None if it is not complete."""
        while True:
            depth = self._depth
            pattern, other = _PATTERNS[min(depth, 2)]
            tag = pattern.match(self._data, self._offset)
            assert tag is not None  # the patterns match no bytes, too
            kind, self._offset = tag.lastgroup, tag.end()
            if kind and depth < 2:
                self._start = tag.start(kind)
            if depth > 1 and not self._first and self._offset > self._start + MAX_STANZA_BYTES:
                self._first = self._first_tag()
            if kind is None:
                self._check_rest(other)
                return None
            self._depth += _DEEPER[kind]
            if not depth:
                return self._open(tag[kind])
            if self._depth < 2:
                return self._finish() if self._depth else self._close(tag[kind])

    def _open(self, header: bytes) -> Event:
        self._header, self._footer = header, b"</%b>" % header[1:-1].split(None, 1)[0]
        root = parse(self._header + self._footer)
        if root.tag != f"{{{NS.STREAMS}}}stream":
            raise BrokenStream
        return Opened(root.get("id", ""))

    def _close(self, footer: bytes) -> Event:
        if footer[:-1].rstrip() + b">" != self._footer:
            raise BrokenStream
        return Closed()

    def _finish(self) -> _Stanza:
        stanza, first = self._data[max(self._start, 0) : self._offset], self._first
        if not first and (len(stanza) > MAX_STANZA_BYTES or stanza.count(b"<") > MAX_TAGS):
            first = self._first_tag()
        self._first = b""
        return _Stanza(first or stanza, bool(first))

    def _read(self, stanzas: list[_Stanza]) -> Iterator[Event]:
        """Yield the events of these stanzas. One parser for all takes a third of the time of one for each."""
        if not stanzas:
            return
        try:
            trees = [*self._parse(b"".join(each.kept for each in stanzas))]
        except BrokenStream:
            trees = [self._parse_one(each.kept) for each in stanzas]
        for tree, each in zip(trees, stanzas, strict=True):
            yield _event(tree, len(each.kept), is_too_large=each.is_too_large)

    def _parse(self, stanzas: bytes) -> Element:
        return parse(self._header + stanzas + self._footer)

    def _parse_one(self, stanza: bytes) -> Element:
        try:
            return self._parse(stanza)[0]
        except BrokenStream:
            return Element("")

    def _first_tag(self) -> bytes:
        """Return the first tag of a stanza, as an element without content."""
        first = _FIRST.match(self._data, self._start)
        return first.group() + b"/>" if first else b""

    def _check_rest(self, other: bytes) -> None:
        """Refuse a rest that can become neither a tag nor ``other``, and a tag longer than MAX_TAG_BYTES."""
        self._check_length()
        rest = self._data[self._offset :]
        is_other = bool(other) and other.startswith(rest[: len(other)])
        if rest and not (is_other or _UNFINISHED.fullmatch(rest)):
            raise BrokenStream

    def _check_length(self) -> None:
        if len(self._data) - self._offset > MAX_TAG_BYTES:
            raise BrokenStream


def _event(tree: Element, size: int, *, is_too_large: bool) -> Event:
    if tree.tag == f"{{{NS.STREAMS}}}error":
        conditions = [each.tag for each in tree if each.tag.startswith(f"{{{NS.STREAM_ERRORS}}}")]
        return Closed(conditions[0].rpartition("}")[2] if conditions else "undefined-condition")
    return Ready() if local_name(tree) == "handshake" else Received(tree, size, is_too_large=is_too_large)
