"""Pure decisions about whether a registration is accepted, in the protocol's own order of checks."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from registrations.messages import RegistrationMessage, TokenType
from registrations.token_types import has_topic
from registrations.uuids import is_uuid

# What Apple and Firebase hand out. Apple's tokens are bytes in hex: 32 on phones today, 80 in simulators, and Apple
# asks not to rely on the length. Firebase's have an id of the installation, a colon, and 134 to 180 characters. What is
# shorter is nobody's token, and dangerous: gateways quote tokens, and a token of one letter blanks all they say.
DEVICE_TOKENS = {
    TokenType.APN: re.compile(r"[0-9A-Fa-f]{64,200}"),
    TokenType.FIREBASE: re.compile(r"[0-9A-Za-z_:-]{100,4096}"),
}
# A bundle id, with `.voip` and the like behind it. PostgreSQL's indexes take no text of some kilobytes.
APP_TOPIC = re.compile(r"[0-9A-Za-z.-]{1,255}")
# A client keeps three devices per user. One key must not fill the table, nor make every answer about it huge.
INSTALLATIONS_PER_KEY = 20


class Refusal(StrEnum):
    """Why a registration is not accepted."""

    MALFORMED = "malformed"
    STALE_VERSION = "stale_version"
    UNSUPPORTED_TOKEN_TYPE = "unsupported_token_type"  # noqa: S105 - a label
    IMPLAUSIBLE_TOKEN = "implausible_token"  # noqa: S105 - not one that Apple or Firebase can have made
    TOO_MANY_INSTALLATIONS = "too_many_installations"  # of this key
    TOO_MANY_NEW = "too_many_new"  # by anybody, in these minutes
    FULL = "full"  # as many registrations are stored as the operator allows
    TOO_MANY_CHANGES = "too_many_changes"  # of this installation, in these minutes
    BAD_APP_TOPIC = "bad_app_topic"  # none where Apple needs one, or one that no app can have


class Acceptance(StrEnum):
    """What an accepted registration asks for."""

    REGISTER = "register"
    UNREGISTER = "unregister"
    RETRANSMISSION = "retransmission"  # known already, so that it is answered again and nothing changes


@dataclass(frozen=True, slots=True)
class Known:
    """What we hold of the installation that a registration is about. The defaults mean that we hold nothing."""

    version: int = 0
    has_same_content: bool = False
    is_registered: bool = True  # False for one that has ended, also by its age


def check_token_type(message: RegistrationMessage) -> Refusal | None:
    """Refuse what is no token of Apple or Firebase, and return None for one that says it is."""
    return None if message.token_type in DEVICE_TOKENS else Refusal.UNSUPPORTED_TOKEN_TYPE


def check_device_token(message: RegistrationMessage) -> Refusal | None:
    """Refuse what Apple or Firebase cannot have made, and return None for what they can."""
    if refusal := check_token_type(message):
        return refusal
    is_plausible = DEVICE_TOKENS[TokenType(message.token_type)].fullmatch(message.device_token)
    return None if is_plausible else Refusal.IMPLAUSIBLE_TOKEN


# Each bridge checks what it calls a device token by the addresses that its gateway takes.
CheckAddress = Callable[[RegistrationMessage], Refusal | None]
"""Says whether a gateway can take the device token of a registration, whose token type is a known one."""


def decide(
    message: RegistrationMessage | None,
    known: Known,
    *,
    grant_verified: bool,
    strict_version_check: bool,
    check_address: CheckAddress = check_device_token,
) -> Acceptance | Refusal:
    """Decide about one registration; ``message`` is None when its body decrypted but did not parse.

    A client repeats a registration with the same version until it hears an answer. Where the spec text says
    VERSION_MISMATCH for an equal version, a byte-identical repeat therefore gets its success again, unless
    ``strict_version_check`` (see docs/decisions). What has expired meanwhile is registered by it again.
    """
    if message is None or message.version < 1 or not is_uuid(message.installation_id):
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
