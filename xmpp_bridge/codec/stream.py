"""The stream of a component (XEP-0114): bytes in, events out.

    us                                          server
    <stream:stream to='push.domain'>  ───────▶
                                      ◀───────  <stream:stream id='…'>        Opened
    <handshake>sha1(id, secret)</…>   ───────▶
                                      ◀───────  <handshake/>                  Ready
                                      ◀───────  <message/>, <iq/>, …          Received, TooLarge
                                      ◀───────  <stream:error/>               Failed
                                      ◀───────  </stream:stream>              Closed

A stanza is built in memory only up to its limit. Expat remembers each name that it has ever seen, so strangers could
fill the memory of a stream that lasts for months: now and then another parser takes over, between two stanzas.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element, ParseError, TreeBuilder

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser

from xmpp_bridge.codec.elements import local_name, write
from xmpp_bridge.codec.errors import BrokenStream
from xmpp_bridge.codec.limits import MAX_DEPTH, MAX_STANZA_BYTES
from xmpp_bridge.codec.names import COMPONENT, STREAM_ERRORS, STREAMS

CLOSING = b"</stream:stream>"
# So much is read by one parser, before another takes over.
ROTATED_AFTER_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Opened:
    """The server's header. ``id`` is empty when the server knows no such component."""

    id: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The handshake was accepted: stanzas flow."""


@dataclass(frozen=True, slots=True)
class Received:
    """One stanza."""

    stanza: Element


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A stanza that exceeded the limit: what its first tag said."""

    name: str
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Failed:
    """A stream error, after which the server closes the stream."""

    condition: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The server closed the stream."""


Event = Opened | Ready | Received | TooLarge | Failed | Closed


def opening(domain: str) -> bytes:
    """Return what a component says first. ``domain`` is the component's own."""
    head = write("stream:stream", xmlns=COMPONENT, to=domain, **{"xmlns:stream": STREAMS})
    return f"<?xml version='1.0'?>{head.removesuffix('/>')}>".encode()


def handshake(stream_id: str, secret: str) -> bytes:
    """Return the proof that we know the secret."""
    digest = hashlib.sha1((stream_id + secret).encode(), usedforsecurity=False).hexdigest()
    return write("handshake", text=digest).encode()


class Stream:
    """Reads what the server sends."""

    def __init__(self) -> None:
        self._builder = _Builder()
        self._parser = DefusedXMLParser(target=self._builder, forbid_dtd=True)
        self._builder.expat = expat = self._parser.parser
        if hasattr(expat, "SetReparseDeferralEnabled"):
            expat.SetReparseDeferralEnabled(False)  # it would keep the end of a stanza back until more comes
        self._header = b""
        self._read_bytes = 0

    def feed(self, data: bytes) -> list[Event]:
        """Return what these bytes bring to an end.

        Raises BrokenStream; nothing more can be read then.
        """
        try:
            self._parser.feed(data)
        except (ParseError, DefusedXmlException, ValueError, LookupError):
            raise BrokenStream from None
        self._read_bytes += len(data)
        self._keep_header(data)
        events = self._builder.take()
        if self._read_bytes > ROTATED_AFTER_BYTES:
            self._rotate(data)
        return events

    def _keep_header(self, data: bytes) -> None:
        """Remember the bytes of the server's first tag, for the parser that takes over."""
        if self._builder.header_end is None:
            self._header += data
        elif self._builder.header_end >= 0:
            self._header = (self._header + data)[: self._builder.header_end]
            self._builder.header_end = -1

    def _rotate(self, data: bytes) -> None:
        """Go on with another parser, if these bytes end with the end of a stanza."""
        start = self._builder.end_index - (self._read_bytes - len(data))
        if self._builder.depth != 1 or start < 0 or data.rfind(b"<") > start:
            return
        fresh = Stream()
        fresh.feed(self._header)
        self._builder, self._parser = fresh._builder, fresh._parser
        self._read_bytes = len(self._header)


class _Builder:
    """What the parser calls: builds one stanza after the other."""

    def __init__(self) -> None:
        self.expat: Any = None
        self.depth = 0
        self.end_index = -1  # where the last stanza's end tag begins
        self.header_end: int | None = None  # behind the stream's first tag, or -1 once that was noted
        self._events: list[Event] = []
        self._tree: TreeBuilder | None = None
        self._root: tuple[str, dict[str, str]] = ("", {})
        self._start_index = 0

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        if self.depth == 1:
            self._open(tag, attributes)
            return
        if self.depth == 2:
            self._tree, self._root, self._start_index = TreeBuilder(), (tag, attributes), self._index
            if self.header_end is None:
                self.header_end = self._index
        self._check_size()
        if self._tree is not None:
            self._tree.start(tag, attributes)

    def data(self, text: str) -> None:
        if self.depth > 1:
            self._check_size()
        if self.depth > 1 and self._tree is not None:
            self._tree.data(text)

    def end(self, tag: str) -> None:
        self.depth -= 1
        if self.depth == 0:
            self._events.append(Closed())
        else:
            self._check_size()
            if self._tree is not None:
                self._tree.end(tag)
        if self.depth == 1:
            self.end_index = self._index
            self._finish()

    def close(self) -> None:
        """Be called by the parser at the end of a document, which a stream never reaches."""

    @property
    def _index(self) -> int:
        return int(self.expat.CurrentByteIndex)

    def _open(self, tag: str, attributes: dict[str, str]) -> None:
        if tag != f"{{{STREAMS}}}stream":
            raise BrokenStream
        self._events.append(Opened(attributes.get("id", "")))

    def _check_size(self) -> None:
        if self._index - self._start_index > MAX_STANZA_BYTES or self.depth > MAX_DEPTH:
            self._tree = None

    def _finish(self) -> None:
        tree, self._tree = self._tree, None
        if tree is None:
            name, attributes = self._root
            self._events.append(TooLarge(name.removeprefix(f"{{{COMPONENT}}}"), attributes))
            return
        stanza: Element = tree.close()
        self._events.append(_event(stanza))


def _event(stanza: Element) -> Event:
    if stanza.tag == f"{{{STREAMS}}}error":
        conditions = [each.tag for each in stanza if each.tag.startswith(f"{{{STREAM_ERRORS}}}")]
        return Failed(conditions[0].rpartition("}")[2] if conditions else "undefined-condition")
    return Ready() if local_name(stanza) == "handshake" else Received(stanza)
