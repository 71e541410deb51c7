"""What a client core gives back: messages to publish, and what happened, as plain values.

A core never raises because of what a peer sent. What it does not believe becomes an `Ignored` with the reason.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from waku_bridge.messages import WakuMessage


class Reason(StrEnum):
    """The reason why a message, or one entry of it, was not believed."""

    DUPLICATE = "duplicate"  # seen before, in this envelope or in another one
    FOREIGN_TOPIC = "foreign_topic"  # we did not ask for this content topic
    UNSUPPORTED_VERSION = "unsupported_version"  # WakuMessage.version other than 1
    NOT_FOR_US = "not_for_us"  # none of our keys opens it: usually it is for somebody else on a shared topic
    UNREADABLE = "unreadable"  # it opens, and is no signed push message; `detail` is the codec's reason
    UNEXPECTED_TYPE = "unexpected_type"  # a push message that is no answer to this kind of client
    UNKNOWN_REQUEST = "unknown_request"  # answers something that we never asked, or asked too long ago
    WRONG_SIGNER = "wrong_signer"  # the request id is ours, but another server was asked; or a foreign contact code
    ALREADY_SETTLED = "already_settled"  # the question has its answer, or the answer is to an older version
    FAILED_QUERY = "failed_query"  # the server could not look the key up
    FOREIGN_CLIENT = "foreign_client"  # tells of a key hash that we did not ask for
    FOREIGN_INSTALLATION = "foreign_installation"  # reports on an installation that we did not ask to notify
    BAD_INSTALLATION = "bad_installation"  # the installation id is no UUID
    BAD_SERVER_KEY = "bad_server_key"  # the advertised server is no point of the curve
    NO_TOKEN = "no_token"  # noqa: S105 - neither an access token nor one sealed for us: we are no contact
    BAD_TOKEN = "bad_token"  # noqa: S105 - the access token is no UUID
    BAD_GRANT = "bad_grant"  # the client has not authorised this server to hand out this token
    TOO_MANY = "too_many"  # more entries than any user has devices: the rest was not looked at
    STALE_VERSION = "stale_version"  # we know a newer registration of the installation with this server


@dataclass(frozen=True, slots=True)
class Ignored:
    """A message, or an entry of one, that was not believed. ``author`` (33 bytes) signed it, if that is known."""

    reason: Reason
    content_topic: str
    author: bytes = b""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A server has taken ``version``: the installation is registered there, or unregistered."""

    server: bytes
    version: int
    is_registered: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """A server refused ``version``. ``error`` is the wire's number, see RegistrationError.

    Unless ``is_final``, the client repeats it by itself.
    """

    server: bytes
    version: int
    error: int
    is_final: bool


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A server did not answer ``version``, however often it was told."""

    server: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Advertised:
    """The contact code was published, naming these servers (33 bytes each)."""

    version: int
    servers: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Destination:
    """One installation that this sender may notify, and the server (33 bytes) that would do it.

    ``client`` (33 bytes) is the key under which the installation is registered; in anonymous mode that is not its chat
    key.
    """

    client: bytes
    server: bytes
    public_key_hash: bytes
    installation_id: str
    access_token: str = field(repr=False)
    version: int


@dataclass(frozen=True, slots=True)
class Learned:
    """A destination became known, its grant verified, from an advertisement of the client or a server's answer."""

    destination: Destination
    is_advertised: bool


class Outcome(StrEnum):
    """How one notification to one installation ended, as far as its sender can know."""

    NOTIFIED = "notified"  # a server reported success
    NO_ANSWER = "no_answer"  # asked, and no server answered in time: it may have been notified
    WRONG_TOKEN = "wrong_token"  # noqa: S105 - and nobody tells us a better one
    INTERNAL_ERROR = "internal_error"  # refused for the moment, at every attempt
    NOT_REGISTERED = "not_registered"  # no server knows it any more
    REFUSED = "refused"  # refused for a reason that we do not know
    NOT_FOUND = "not_found"  # the caller named it, and nobody tells us its server


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of one installation. ``server`` (33 bytes) answered or kept silent last; it is empty when none was
    asked.

    ``request_count`` requests were sent for it. A success that comes too late corrects NO_ANSWER, with another event.
    """

    message_id: bytes
    client: bytes
    installation_id: str
    outcome: Outcome
    server: bytes = b""
    request_count: int = 0


@dataclass(frozen=True, slots=True)
class Notified:
    """All installations of one client are settled.

    Without installations, ``answer_count`` tells why: no server answered (0), or those that did had nothing for this
    sender.
    """

    message_id: bytes
    client: bytes
    installations: tuple[Settled, ...]
    answer_count: int = 0

    @property
    def is_notified(self) -> bool:
        """Return whether at least one installation was notified."""
        return any(settled.outcome is Outcome.NOTIFIED for settled in self.installations)


@dataclass(frozen=True, slots=True)
class LookedUp:
    """A query is over. ``answer_count`` servers answered it; none does for an unknown client."""

    client: bytes
    answer_count: int


Event = Ignored | Accepted | Refused | GivenUp | Advertised | Learned | Settled | Notified | LookedUp


@dataclass(frozen=True, slots=True)
class Step:
    """What a core wants after an input.

    The ``messages`` are to be published, and what the store has on the topics in ``history`` is to be given to
    ``receive``.
    """

    messages: tuple[WakuMessage, ...] = ()
    events: tuple[Event, ...] = ()
    history: tuple[str, ...] = ()
