"""Addresses of imagined devices, as Apple and Firebase would have made them, for demonstrations, load and tests.

The development gateway decides the fate of a push by the prefix of its device token (`dead-`, `flaky1-`). A token of
Apple is hex, so there the prefix is written in hex as well.
"""

from base64 import urlsafe_b64encode

from registrations.messages import TokenType
from waku_bridge.client.state import Address
from waku_bridge.codec.keys import RandomBytes


def iphone(app_topic: str, random_bytes: RandomBytes, fate: str = "") -> Address:
    """Return the address of an iPhone: a token of 64 characters, and more for its fate."""
    return Address(TokenType.APN, fate.encode().hex() + random_bytes(32).hex(), app_topic)


def android(random_bytes: RandomBytes, fate: str = "") -> Address:
    """Return the address of an Android phone: an id of the installation and what Firebase signed, 163 characters."""
    installation, signed = _text(random_bytes(16)), _text(random_bytes(100))
    return Address(TokenType.FIREBASE, f"{fate}{installation}:APA91b{signed}")


def _text(random: bytes) -> str:
    return urlsafe_b64encode(random).rstrip(b"=").decode()
