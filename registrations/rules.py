"""Whether a registration is accepted: pure decisions in the protocol's own order of checks."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from registrations.messages import RegistrationMessage, TokenType
from registrations.uuids import is_uuid


class Refusal(StrEnum):
    """Why a registration is not accepted."""

    MALFORMED = "malformed"
    STALE_VERSION = "stale_version"
    UNSUPPORTED_TOKEN_TYPE = "unsupported_token_type"  # noqa: S105 - a label


class Acceptance(StrEnum):
    """What an accepted registration asks for."""

    REGISTER = "register"
    UNREGISTER = "unregister"
    RETRANSMISSION = "retransmission"  # known already: answered again, nothing changes


@dataclass(frozen=True, slots=True)
class Known:
    """What we hold of the installation a registration is about; the defaults mean nothing at all."""

    version: int = 0
    has_same_content: bool = False


def decide(
    message: RegistrationMessage | None, known: Known, *, grant_verified: bool, strict_version_check: bool
) -> Acceptance | Refusal:
    """Decide about one registration; ``message`` is None when its body decrypted but did not parse.

    A client repeats a registration with the same version until it hears an answer. Where the spec text says
    VERSION_MISMATCH for an equal version, a byte-identical repeat therefore gets its success again, unless
    ``strict_version_check`` (see docs/decisions).
    """
    if message is None or message.version < 1 or not is_uuid(message.installation_id):
        return Refusal.MALFORMED
    if message.version <= known.version:
        is_repeat = message.version == known.version and known.has_same_content
        return Acceptance.RETRANSMISSION if is_repeat and not strict_version_check else Refusal.STALE_VERSION
    if message.unregister:
        return Acceptance.UNREGISTER
    return next(_faults(message, grant_verified=grant_verified), Acceptance.REGISTER)


def _faults(message: RegistrationMessage, *, grant_verified: bool) -> Iterator[Refusal]:
    if not is_uuid(message.access_token) or not grant_verified or not message.device_token:
        yield Refusal.MALFORMED
    if message.token_type not in {TokenType.APN, TokenType.FIREBASE}:
        yield Refusal.UNSUPPORTED_TOKEN_TYPE
    if message.token_type == TokenType.APN and not message.apn_topic:
        yield Refusal.MALFORMED
