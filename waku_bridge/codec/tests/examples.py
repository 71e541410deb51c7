"""One valid example of each message, with as few fields as it needs, and predictable randomness."""

from collections.abc import Callable
from itertools import count
from typing import Any

from coincurve import PrivateKey

from notifications.messages import NotificationType, PushNotification, PushRequest, Report
from registrations.messages import QueryInfo, RegistrationMessage, TokenType
from waku_bridge.codec import envelope, keys
from waku_bridge.codec.keys import Identity, keccak256, sign_grant
from waku_bridge.messages import (
    ContactCodeAdvertisement,
    PushResponse,
    Query,
    QueryResponse,
    RegistrationError,
    RegistrationResponse,
)

CLIENT, SERVER, SENDER, OUTSIDER = (Identity(PrivateKey(bytes([secret]) * 32)) for secret in (1, 2, 4, 7))
TOPIC_KEY = b"\x09" * 32
UUID = "11111111-1111-4111-8111-111111111111"
ACCESS_TOKEN = "c0ffee00-0000-4000-8000-000000000001"
NOW_NS = 1_700_000_000_000_000_000

REGISTRATION = RegistrationMessage(
    UUID,
    version=1,
    token_type=TokenType.FIREBASE,
    device_token="device-token-1",
    access_token=ACCESS_TOKEN,
    grant=sign_grant(CLIENT.private_key, SERVER.pub33, ACCESS_TOKEN),
    enabled=True,
)
NOTIFICATION = PushNotification(CLIENT.key_hash, UUID, ACCESS_TOKEN, NotificationType.MESSAGE)
INFO = QueryInfo(CLIENT.key_hash, UUID, 1, REGISTRATION.grant, ACCESS_TOKEN)

QUERY = Query((CLIENT.key_hash,))
REQUEST = PushRequest(b"\x0a" * 32, (NOTIFICATION,))
BODIES = (
    REGISTRATION,
    RegistrationResponse(b"\x0b" * 64, success=False, error=RegistrationError.VERSION_MISMATCH),
    QUERY,
    QueryResponse(b"\x0c" * 32, success=True, info=(INFO,)),
    REQUEST,
    PushResponse(b"\x0a" * 32, (Report(CLIENT.key_hash, UUID, success=True),)),
    ContactCodeAdvertisement((INFO,)),
)


def fixed(*draws: bytes) -> Callable[[int], bytes]:
    """Return randomness that yields these draws in order, and fails when another size is requested."""
    remaining = iter(draws)

    def random_bytes(size: int) -> bytes:
        drawn = next(remaining)
        assert len(drawn) == size
        return drawn

    return random_bytes


def repeatable() -> Callable[[int], bytes]:
    """Return randomness that differs from draw to draw and is the same in every run."""
    draws = count()

    def random_bytes(size: int) -> bytes:
        block = keccak256(next(draws).to_bytes(4, "big"))
        return (block * (size // len(block) + 1))[:size]

    return random_bytes


def _defaults() -> dict[str, Any]:
    return {
        "signer": CLIENT,
        "recipient": SERVER.pub33,
        "timestamp_ns": NOW_NS,
        "random_bytes": repeatable(),
    }


def sent(body: object, **differences: object) -> envelope.Encoded:
    """Encode a body, by default from the client to the server."""
    return envelope.encode(body, **_defaults() | differences)


def sent_payload(payload: bytes, message_type: int, **differences: object) -> bytes:
    """Return the Waku payload of a signed message with these bytes."""
    sent = envelope.encode_payload(payload, message_type, topic_name="a topic", **_defaults() | differences)
    return sent.message.payload


def framed(data: bytes, signer: Identity | None = CLIENT) -> bytes:
    """Return the Waku payload of a frame with any data, signed or not, which the server decrypts."""
    built = keys.build_frame(data, signer.private_key if signer else None, repeatable())
    return keys.seal_to_key(built, SERVER.pub33, repeatable())
