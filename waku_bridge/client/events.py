"""The results of a client core: messages to publish and events, as plain values.

No message of a peer makes a core raise. A message that it does not accept becomes an `Ignored` event with the reason.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from waku_bridge.messages import WakuMessage


class Reason(StrEnum):
    """The reason why a message, or one entry of it, was not accepted."""

    DUPLICATE = "duplicate"  # seen before, in this envelope or in another one
    FOREIGN_TOPIC = "foreign_topic"  # we do not read this content topic
    UNSUPPORTED_VERSION = "unsupported_version"  # WakuMessage.version other than 1
    NOT_FOR_US = "not_for_us"  # none of our keys opens it: usually it is for somebody else on a shared topic
    UNREADABLE = "unreadable"  # it opens, but it is no signed push message; `detail` is the codec's reason
    UNEXPECTED_TYPE = "unexpected_type"  # a push message that is no answer to this kind of client
    UNKNOWN_REQUEST = "unknown_request"  # answers a request that we never sent, or sent too long ago
    WRONG_SIGNER = "wrong_signer"  # our request went to another server; or somebody else signed the contact code
    ALREADY_SETTLED = "already_settled"  # the question has its answer, or the answer is to an older version
    FAILED_QUERY = "failed_query"  # the server could not look the key up
    FOREIGN_CLIENT = "foreign_client"  # it is about a key hash that we did not query
    FOREIGN_INSTALLATION = "foreign_installation"  # reports on an installation that was not in the request
    BAD_INSTALLATION = "bad_installation"  # the installation id is no UUID
    BAD_SERVER_KEY = "bad_server_key"  # the advertised server is no point of the curve
    NO_TOKEN = "no_token"  # noqa: S105 - no access token, and none sealed for us: this sender is no contact
    BAD_TOKEN = "bad_token"  # noqa: S105 - the access token is no UUID
    BAD_GRANT = "bad_grant"  # the client has not authorised this server to give this token to senders
    TOO_MANY = "too_many"  # more entries than any user has devices: the rest was skipped
    STALE_VERSION = "stale_version"  # a newer registration of the installation with this server is known


@dataclass(frozen=True, slots=True)
class Ignored:
    """A message, or an entry of one, that was not accepted. ``author`` (33 bytes) signed it, if that is known."""

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
    """A server refused ``version``. ``error`` is the wire's number: see RegistrationError.

    Unless ``is_final``, the client repeats the registration by itself.
    """

    server: bytes
    version: int
    error: int
    is_final: bool


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A server did not answer ``version`` after the last attempt."""

    server: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Advertised:
    """The contact code was published with these servers (33 bytes each)."""

    version: int
    servers: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Destination:
    """One installation that this sender may notify, and a server (33 bytes) that it is registered with.

    ``client`` (33 bytes) is the key under which the installation is registered. In anonymous mode it is not the user's
    chat key.
    """

    client: bytes
    server: bytes
    public_key_hash: bytes
    installation_id: str
    access_token: str = field(repr=False)
    version: int


@dataclass(frozen=True, slots=True)
class Learned:
    """A destination with a verified grant was learned, from the client's advertisement or from a server's answer."""

    destination: Destination
    is_advertised: bool


class Outcome(StrEnum):
    """The end of one notification to one installation, as far as its sender can know."""

    NOTIFIED = "notified"  # a server reported success
    NO_ANSWER = "no_answer"  # no server answered the request in time: the installation may have been notified
    WRONG_TOKEN = "wrong_token"  # noqa: S105 - and no query returned a valid one
    INTERNAL_ERROR = "internal_error"  # refused for the moment, at every attempt
    NOT_REGISTERED = "not_registered"  # it is not registered with any server any more
    REFUSED = "refused"  # refused with an unknown error
    NOT_FOUND = "not_found"  # the caller named it, and no query returned its server


@dataclass(frozen=True, slots=True)
class Settled:
    """The outcome of one installation. ``server`` (33 bytes) received the last request, or is empty without any.

    ``request_count`` requests were sent for it. A late success corrects NO_ANSWER with a second event.
    """

    message_id: bytes
    client: bytes
    installation_id: str
    outcome: Outcome
    server: bytes = b""
    request_count: int = 0


@dataclass(frozen=True, slots=True)
class Notified:
    """All installations of one client are settled. There may be none."""

    message_id: bytes
    client: bytes
    installations: tuple[Settled, ...]

    @property
    def is_notified(self) -> bool:
        """Return whether at least one installation was notified."""
        return any(settled.outcome is Outcome.NOTIFIED for settled in self.installations)


@dataclass(frozen=True, slots=True)
class LookedUp:
    """A query is over. ``answer_count`` servers answered it. For an unknown client no server answers."""

    client: bytes
    answer_count: int


Event = Ignored | Accepted | Refused | GivenUp | Advertised | Learned | Settled | Notified | LookedUp


@dataclass(slots=True)
class Step:
    """The result of an input to a core.

    The caller publishes the ``messages``. For each topic in ``history`` it passes the messages in the store to
    ``receive``.
    """

    messages: list[WakuMessage] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    history: list[str] = field(default_factory=list)
