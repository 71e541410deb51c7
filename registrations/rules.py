"""Pure decisions about whether a registration is accepted, in the protocol's own order of checks."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from registrations.messages import RegistrationMessage, TokenType, has_topic, is_uuid

# Formats of device tokens. Apple's tokens are bytes in hex: 32 on phones today, 80 in simulators, and Apple asks not to
# rely on the length. Firebase's tokens have an installation id, a colon, and 134 to 180 characters. Shorter texts are
# no tokens, and dangerous: gateways quote tokens in errors, so redaction of a one-letter token would blank everything.
DEVICE_TOKENS = {
    TokenType.APN: re.compile(r"[0-9A-Fa-f]{64,200}"),
    TokenType.FIREBASE: re.compile(r"[0-9A-Za-z_:-]{100,4096}"),
}
# A bundle id, possibly with a suffix such as `.voip`. PostgreSQL cannot index texts of several kilobytes.
APP_TOPIC = re.compile(r"[0-9A-Za-z.-]{1,255}")
# A client keeps three devices per user. One key must not fill the table, nor make every answer about it huge.
INSTALLATIONS_PER_KEY = 20
# Limit of the installations that the deliveries to one address prove.
PROVEN_PER_ADDRESS = 20


class Refusal(StrEnum):
    """The reason why a registration is refused."""

    MALFORMED = "malformed"
    STALE_VERSION = "stale_version"
    UNSUPPORTED_TOKEN_TYPE = "unsupported_token_type"  # noqa: S105 - a label
    IMPLAUSIBLE_TOKEN = "implausible_token"  # noqa: S105 - no token of Apple or Firebase has this format
    TOO_MANY_INSTALLATIONS = "too_many_installations"  # of this key
    TOO_MANY_NEW = "too_many_new"  # by all clients, in the last minutes
    FULL = "full"  # MAX_REGISTRATIONS is reached, and nothing may go for it
    TOO_MANY_CHANGES = "too_many_changes"  # of this installation, in the last minutes
    BAD_APP_TOPIC = "bad_app_topic"  # missing although Apple needs one, or no possible bundle id


class Acceptance(StrEnum):
    """The effect of an accepted registration."""

    REGISTER = "register"
    UNREGISTER = "unregister"
    RETRANSMISSION = "retransmission"  # a repetition, which is answered again and changes nothing


@dataclass(frozen=True, slots=True)
class Known:
    """The stored facts about an installation. The defaults stand for an unknown installation."""

    version: int = 0
    has_same_content: bool = False
    is_registered: bool = True  # False for an installation that has unregistered or expired


def check_token_type(message: RegistrationMessage) -> Refusal | None:
    """Refuse token types other than those of Apple and Firebase, and return None for these."""
    return None if message.token_type in DEVICE_TOKENS else Refusal.UNSUPPORTED_TOKEN_TYPE


def check_device_token(message: RegistrationMessage) -> Refusal | None:
    """Refuse device tokens that Apple or Firebase cannot have issued, and return None for possible ones."""
    if refusal := check_token_type(message):
        return refusal
    is_plausible = DEVICE_TOKENS[TokenType(message.token_type)].fullmatch(message.device_token)
    return None if is_plausible else Refusal.IMPLAUSIBLE_TOKEN


# Returns the refusal of a device token that cannot be an address at the gateway of its bridge, or None.
CheckAddress = Callable[[RegistrationMessage], Refusal | None]


def decide(
    message: RegistrationMessage,
    known: Known,
    *,
    grant_verified: bool,
    strict_version_check: bool,
    check_address: CheckAddress = check_device_token,
) -> Acceptance | Refusal:
    """Decide about one registration.

    A client repeats a registration with the same version until it receives an answer. The text of the spec requires
    VERSION_MISMATCH for an equal version. But a byte-identical repetition gets its success again, unless
    ``strict_version_check`` is set (see docs/decisions). It also registers an installation that has expired meanwhile.
    """
    if message.version < 1 or not is_uuid(message.installation_id):
        return Refusal.MALFORMED
    if message.version <= known.version:
        is_repeat = message.version == known.version and known.has_same_content
        if not is_repeat or strict_version_check:
            return Refusal.STALE_VERSION
        if known.is_registered or message.unregister:
            return Acceptance.RETRANSMISSION
    if message.unregister:
        return Acceptance.UNREGISTER
    return next(_faults(message, check_address, grant_verified=grant_verified), Acceptance.REGISTER)


def _faults(message: RegistrationMessage, check_address: CheckAddress, *, grant_verified: bool) -> Iterator[Refusal]:
    if not is_uuid(message.access_token) or not grant_verified or not message.device_token:
        yield Refusal.MALFORMED
    if refusal := check_address(message):
        yield refusal
    if (message.app_topic or has_topic(message.token_type)) and not APP_TOPIC.fullmatch(message.app_topic):
        yield Refusal.BAD_APP_TOPIC
