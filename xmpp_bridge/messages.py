"""What XMPP servers and apps say, and what they are told, as plain values.

Secrets and what users wrote are left out of every repr.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import uuid4

from notifications.messages import Grade

BRIDGE = "xmpp"  # our name in what is stored


class Dialect(StrEnum):
    """How a push was asked for. Both forms of Push 2.0 have one namespace, and different elements in it."""

    DRAFT = "draft"
    MOD_PUSH2 = "mod_push2"
    XEP0357 = "xep0357"


class Kind(StrEnum):
    """What a push carries."""

    WAKE = "wake"
    ENCRYPTED = "encrypted"
    FORWARD = "forward"  # a stanza that we could read


class Format(StrEnum):
    """How a payload is encrypted, in the words that go to the device."""

    TIGASE = "t"
    ENCRYPTED_JSON = "j"
    RFC8291 = "w"


@dataclass(frozen=True, slots=True)
class Origin:
    """The stanza that something came in: whatever is needed to answer it, as it was written."""

    stanza: str  # message or iq
    id: str
    sender: str
    service: str


@dataclass(frozen=True, slots=True)
class Payload:
    """A ciphertext for the device, in base64 exactly as it came."""

    format: Format
    text: str = field(repr=False)
    iv: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class PushNotification:
    """A push, whatever its dialect.

    It names its device by ``client`` (Push 2.0), or by ``node`` and ``secret`` (XEP-0357). ``body`` is what we could
    read of the message: it goes no further, unless the app has it passed on.
    """

    dialect: Dialect
    origin: Origin
    grade: Grade
    kind: Kind
    client: str = field(default="", repr=False)
    node: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)
    payload: Payload | None = None
    body: str = field(default="", repr=False)
    # Names it where its sender does not, also when it is stored again because the answer to a commit was lost.
    arrival: str = field(default_factory=lambda: uuid4().hex, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Command:
    """An ad-hoc command (XEP-0050). ``fields`` is None when no form was submitted."""

    origin: Origin
    node: str
    action: str = "execute"
    session: str = ""
    fields: Mapping[str, str] | None = field(default=None, repr=False)


class Question(StrEnum):
    """What can be asked about the service itself."""

    DISCO_INFO = "disco_info"
    DISCO_ITEMS = "disco_items"
    PING = "ping"


@dataclass(frozen=True, slots=True)
class Query:
    """A question about the service."""

    origin: Origin
    question: Question
    node: str = ""


@dataclass(frozen=True, slots=True)
class Malformed:
    """A push or a command that says it wrongly, or is too large."""

    origin: Origin


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A request that nobody serves here. An IQ has to be answered in any case."""

    origin: Origin
    condition: str


@dataclass(frozen=True, slots=True)
class IqAnswer:
    """An answer to something that we asked. ``condition`` is that of an error, and ``by`` who says to have made it."""

    id: str
    sender: str
    is_error: bool
    condition: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class Ignored:
    """What is answered with silence: presence, errors, messages without a push, and what cannot be answered."""

    reason: str


StanzaEvent = PushNotification | Command | Query | Malformed | Unsupported | IqAnswer | Ignored


@dataclass(frozen=True, slots=True)
class StanzaError:
    """An error as stanzas carry it. ``text`` is a hint for the reader, ``disabled_client`` the client string of a route
    that is no more.
    """

    type: str
    condition: str
    text: str = ""
    disabled_client: str = field(default="", repr=False)
