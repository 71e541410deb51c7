"""Stream of a component (XEP-0114): bytes in, events out.

    us                                          server
    <stream:stream to='push.domain'>  ───────▶
                                      ◀───────  <stream:stream id='…'>        Opened
    <handshake>sha1(id, secret)</…>   ───────▶
                                      ◀───────  <handshake/>                  Ready
                                      ◀───────  <message/>, <iq/>, …          Received, TooLarge, Unreadable
                                      ◀───────  <stream:error/>               Failed
                                      ◀───────  </stream:stream>              Closed

The end of a stanza is found by counting tags, without a parser. So a stanza beyond a limit costs next to nothing, and
its tree is never built. Each read has a parser of its own, so that no name in a stanza stays in memory after it.
A stanza that the parser refuses is skipped: some servers pass on such stanzas, for example with a brace in a namespace.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from xmpp_bridge.codec.elements import COMPONENT, STREAM_ERRORS, STREAMS, BrokenStream, local_name, parse, write

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
_START, _EMPTY, _END = _WITHIN + rb">", _WITHIN + rb"/>", rb"</[^<>/!?\s][^<>]*+>"
_SPACE = rb"[ \t\r\n]*+"
_DECLARATION, _SECTION = b"<?xml", b"<![CDATA["
_HEADER = re.compile(rb"%b(?:<\?xml[^<>]*+(?<=\?)>)?%b(?P<start>%b)?" % (_SPACE, _SPACE, _START))
_BETWEEN = re.compile(rb"%b(?:(?P<empty>%b)|(?P<start>%b)|(?P<end>%b))?" % (_SPACE, _EMPTY, _START, _END))
# Up to the next tag that opens or closes an element with child elements.
_INSIDE = re.compile(
    rb"(?:[^<]++|%b(?:/>|>[^<]*+%b)|<!\[CDATA\[(?s:.*?)\]\]>)*(?:(?P<start>%b)|(?P<end>%b))?"
    % (_WITHIN, _END, _START, _END)
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
    """One stanza, and its size in bytes."""

    stanza: Element
    size: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A stanza that exceeded a limit: name, attributes and size in bytes of its first tag."""

    name: str
    attributes: Mapping[str, str]
    size: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A stanza that our parser refuses. Its sender is unknown."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A stream error, after which the server closes the stream."""

    condition: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The server closed the stream."""


Event = Opened | Ready | Received | TooLarge | Unreadable | Failed | Closed


def opening(domain: str) -> bytes:
    """Return the header that opens the stream. ``domain`` is the component's own."""
    head = write("stream:stream", xmlns=COMPONENT, to=domain, **{"xmlns:stream": STREAMS})
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
        parts, fault = self._take()
        stanzas: list[bytes] = []
        for part in parts:
            if isinstance(part, bytes):
                stanzas.append(part)
            else:
                yield from self._read(stanzas)
                yield part
                stanzas = []
        yield from self._read(stanzas)
        if fault:
            raise fault
        self._drop()

    def _take(self) -> tuple[list[Event | bytes], BrokenStream | None]:
        """Return the events and stanzas that are complete, and the fault that follows them."""
        parts: list[Event | bytes] = []
        try:
            while part := self._next():
                parts.append(part)
        except BrokenStream as fault:
            return parts, fault
        return parts, None

    def _next(self) -> Event | bytes | None:
        """Return the next event, or the next stanza in bytes, or None if it is not complete."""
        if not self._depth:
            return self._open()
        if self._depth == 1 and not self._begin():
            return None
        if not self._depth:
            return self._close()
        return self._finish() if self._reach_end() else None

    def _read(self, stanzas: list[bytes]) -> Iterator[Event]:
        """Yield the events of these stanzas. One parser for all takes a third of the time of one for each."""
        trees: Iterable[Element | None]
        try:
            trees = self._parse(b"".join(stanzas)) if stanzas else ()
        except BrokenStream:
            trees = map(self._parse_one, stanzas)
        yield from map(_event, trees, map(len, stanzas))

    def _open(self) -> Event | None:
        header = self._match(_HEADER)
        if header.lastgroup is None:
            self._check_rest(_DECLARATION)
            return None
        self._header = header["start"]
        self._footer = b"</%b>" % self._header[1:-1].split(None, 1)[0]
        root = parse(self._header + self._footer)
        if root.tag != f"{{{STREAMS}}}stream":
            raise BrokenStream
        self._depth = 1
        return Opened(root.get("id", ""))

    def _close(self) -> Event:
        if self._data[self._start + 2 : self._offset - 1].rstrip() != self._footer[2:-1]:
            raise BrokenStream
        return Closed()

    def _begin(self) -> bool:
        """Advance to the next tag between two stanzas, and return whether it is complete."""
        tag = self._match(_BETWEEN)
        if tag.lastgroup is None:
            self._check_rest()
            return False
        self._start = tag.start(tag.lastgroup)
        self._depth += _DEEPER[tag.lastgroup]
        return True

    def _reach_end(self) -> bool:
        """Advance to the end of the stanza, and return whether it is complete."""
        data = self._data
        kind: str | None = ""
        while self._depth > 1 and kind is not None:
            tag = _INSIDE.match(data, self._offset)
            assert tag is not None
            self._offset, kind = tag.end(), tag.lastgroup
            self._depth += _DEEPER[kind]
        if self._offset > self._start + MAX_STANZA_BYTES:
            self._skip()
        if kind is None:
            self._check_rest(_SECTION)
        return kind is not None

    def _finish(self) -> Event | bytes:
        stanza = self._data[max(self._start, 0) : self._offset]
        if len(stanza) > MAX_STANZA_BYTES or stanza.count(b"<") > MAX_TAGS:
            self._skip()
        if not self._first:
            return stanza
        size = len(self._first)
        first, self._first = self._parse_one(self._first + b"/>"), b""
        return Unreadable() if first is None else TooLarge(local_name(first), first.attrib, size)

    def _match(self, pattern: "re.Pattern[bytes]") -> "re.Match[bytes]":
        """Advance by a match of the pattern, which may be empty, and return the match."""
        match = pattern.match(self._data, self._offset)
        assert match is not None
        self._offset = match.end()
        return match

    def _skip(self) -> None:
        if not self._first:
            first = _FIRST.match(self._data, self._start)
            self._first = first.group() if first else b""

    def _parse(self, stanzas: bytes) -> Element:
        return parse(self._header + stanzas + self._footer)

    def _parse_one(self, stanza: bytes) -> Element | None:
        try:
            return self._parse(stanza)[0]
        except BrokenStream:
            return None

    def _check_rest(self, also: bytes = b"") -> None:
        """Refuse a rest that can become neither a tag nor ``also``, and a tag longer than MAX_TAG_BYTES."""
        self._check_length()
        rest = self._data[self._offset :]
        is_other = bool(also) and also.startswith(rest[: len(also)])
        if rest and not (is_other or _UNFINISHED.fullmatch(rest)):
            raise BrokenStream

    def _check_length(self) -> None:
        if len(self._data) - self._offset > MAX_TAG_BYTES:
            raise BrokenStream

    def _drop(self) -> None:
        """Forget the data that was read."""
        read = self._start if self._depth > 1 and not self._first else self._offset
        self._data = self._data[read:]
        self._start -= read
        self._offset -= read


def _event(stanza: Element | None, size: int) -> Event:
    if stanza is None:
        return Unreadable()
    if stanza.tag == f"{{{STREAMS}}}error":
        conditions = [each.tag for each in stanza if each.tag.startswith(f"{{{STREAM_ERRORS}}}")]
        return Failed(conditions[0].rpartition("}")[2] if conditions else "undefined-condition")
    return Ready() if local_name(stanza) == "handshake" else Received(stanza, size)
