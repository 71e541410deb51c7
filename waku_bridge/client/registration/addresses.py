"""Made-up addresses of devices, in the form of those of Apple and Firebase, for demonstrations, load and tests.

The prefix of a device token (`dead-`, `flaky1-`) tells the development gateway how to answer a push. Apple's tokens are
hex, so there the prefix is in hex as well.
"""

from base64 import urlsafe_b64encode

from registrations.messages import TokenType
from waku_bridge.client.state import Address
from waku_bridge.codec.keys import RandomBytes


def iphone(app_topic: str, random_bytes: RandomBytes, fate: str = "") -> Address:
    """Return the address of an iPhone: the prefix ``fate``, and 64 characters."""
    return Address(TokenType.APN, fate.encode().hex() + random_bytes(32).hex(), app_topic)


def android(random_bytes: RandomBytes, fate: str = "") -> Address:
    """Return the address of an Android phone: the prefix ``fate``, and 163 characters in Firebase's form."""
    installation, signed = _text(random_bytes(16)), _text(random_bytes(100))
    return Address(TokenType.FIREBASE, f"{fate}{installation}:APA91b{signed}")


def _text(random: bytes) -> str:
    return urlsafe_b64encode(random).rstrip(b"=").decode()
