"""Decoded stanzas, errors in answers, and the styles of pushes. No repr holds a secret or a text of a user."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from uuid import uuid4

from notifications.messages import Grade

BRIDGE = "xmpp"  # the name of this bridge in stored rows


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


class Question(StrEnum):
    """The subject of a query about the service itself."""

    DISCO_INFO = "disco_info"
    DISCO_ITEMS = "disco_items"
    PING = "ping"


@dataclass(frozen=True, slots=True)
class Query:
    """A query about the service."""

    origin: Origin
    question: Question
    node: str = ""


@dataclass(frozen=True, slots=True)
class Malformed:
    """A push or a command in a wrong form, or a request that is too large."""

    origin: Origin


@dataclass(frozen=True, slots=True)
class Unsupported:
    """An IQ with a request that we do not serve. XMPP requires an answer to every IQ."""

    origin: Origin
    condition: str


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


StanzaEvent = PushNotification | Command | Query | Malformed | Unsupported | IqAnswer | Ignored


@dataclass(frozen=True, slots=True)
class StanzaError:
    """An error as stanzas carry it.

    ``text`` is a hint for people. ``disabled_client`` is the client string of a route that is gone.
    """

    type: str
    condition: str
    text: str = ""
    disabled_client: str = field(default="", repr=False)
