"""Addresses, decoded stanzas, errors in answers, styles of pushes. No repr holds a secret or a text of a user."""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from uuid import uuid4

import idna

from notifications.messages import Grade

BRIDGE = "xmpp"  # the name of this bridge in stored rows
# A JID is three parts of at most 1023 bytes each (RFC 7622, 3.1).
MAX_JID_CHARACTERS = 3071
_PLAIN_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\]")


@dataclass(frozen=True, slots=True)
class Jid:
    """An address in the form in which addresses are compared: case-folded, the domain as ASCII."""

    local: str
    domain: str
    resource: str

    @property
    def bare(self) -> str:
        """The address without the resource: that of the account or the server."""
        return f"{self.local}@{self.domain}" if self.local else self.domain


NOBODY = Jid("", "", "")


def parse_jid(text: str) -> Jid | None:
    """Return the parts of a JID, or None for a text that is no JID."""
    if len(text) > MAX_JID_CHARACTERS:
        return None
    bare, slash, resource = text.partition("/")
    local, at, domain = bare.rpartition("@")
    folded = parse_domain(domain)
    if not folded or (at and not local) or (slash and not resource):
        return None
    return Jid(unicodedata.normalize("NFC", local.casefold()), folded, resource)


def parse_domain(text: str) -> str:
    """Return a domain in the form in which domains are compared, or an empty text if it is no domain."""
    if not text.isascii():  # UTS 46 also folds the case, and maps letters with two forms, such as ß
        try:
            text = idna.encode(text, uts46=True).decode("ascii")
        except (idna.IDNAError, UnicodeError):
            return ""
    folded = text.lower().removesuffix(".")
    return folded if _PLAIN_DOMAIN.fullmatch(folded) and ".." not in folded else ""


class Dialect(StrEnum):
    """The protocol of a push. Both forms of Push 2.0 have one namespace, with different elements in it."""

    DRAFT = "draft"
    MOD_PUSH2 = "mod_push2"
    XEP0357 = "xep0357"


class Format(StrEnum):
    """The encryption of a payload, by the values that the device receives."""

    TIGASE = "t"
    ENCRYPTED_JSON = "j"
    RFC8291 = "w"


class Style(StrEnum):
    """The naming of a push's data, which apps of other push services expect."""

    GENERIC = "generic"
    TIGASE = "tigase"
    RFC8291 = "rfc8291"
    CONVERSATIONS = "conversations"


@dataclass(frozen=True, slots=True)
class Origin:
    """The addresses and the id of a received stanza, unchanged, as its answer needs them."""

    stanza: str  # message or iq
    id: str
    sender: str
    service: str


@dataclass(frozen=True, slots=True)
class StanzaError:
    """An error as stanzas carry it.

    ``text`` is a hint for people. ``disabled_client`` is the client string of a route that is gone.
    """

    type: str
    condition: str
    text: str = ""
    disabled_client: str = field(default="", repr=False)


class Errors:
    """The errors that more than one kind of stanza is answered with."""

    NOT_FOUND = StanzaError("cancel", "item-not-found")
    BUSY = StanzaError("wait", "resource-constraint")
    TROUBLE = StanzaError("wait", "internal-server-error")
    FORBIDDEN = StanzaError("auth", "forbidden")
    BAD_REQUEST = StanzaError("modify", "bad-request")


@dataclass(frozen=True, slots=True)
class Payload:
    """A ciphertext for the device, in base64 exactly as received."""

    format: Format
    text: str = field(repr=False)
    iv: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class PushNotification:
    """A push of any dialect.

    It names its device by ``client`` (Push 2.0), or by ``node`` and ``secret`` (XEP-0357). ``body`` is the text of the
    message in clear. It is dropped, unless the app passes texts on. ``is_forward`` says that the push forwards a
    message.
    """

    dialect: Dialect
    origin: Origin
    grade: Grade
    is_forward: bool = False
    client: str = field(default="", repr=False)
    node: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)
    payload: Payload | None = None
    body: str = field(default="", repr=False)
    # Names the push if its stanza has no id. The name stays the same when the push is stored once more, because the
    # answer to a commit was lost.
    arrival: str = field(default_factory=lambda: uuid4().hex, repr=False, compare=False)
    arrived_at: datetime | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Command:
    """An ad-hoc command (XEP-0050). ``fields`` is None when no form was submitted."""

    origin: Origin
    node: str
    action: str = "execute"
    session: str = ""
    fields: Mapping[str, str] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Query:
    """A query about the service: a ping, or service discovery, by its namespace."""

    origin: Origin
    namespace: str
    node: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """A request in a wrong form, too large, or one that we do not serve. XMPP requires an answer to every IQ."""

    origin: Origin
    error: StanzaError


@dataclass(frozen=True, slots=True)
class IqAnswer:
    """An answer to an IQ of ours. ``condition`` and ``by`` are those of an error: its kind, and its claimed author."""

    id: str
    sender: str
    is_error: bool
    condition: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class Ignored:
    """A stanza without an answer: presence, an error, a message without a push, or one without an address."""

    reason: str


StanzaEvent = PushNotification | Command | Query | Refused | IqAnswer | Ignored
