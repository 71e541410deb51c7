"""Chat keys as people paste them."""

from waku_bridge.codec.errors import BadPublicKey
from waku_bridge.codec.keys import COMPRESSED_BYTES, parse_public_key

_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_SECP256K1_PUB = b"\xe7\x01"  # multicodec 0xe7 as a varint
_MULTIBASE_CHARACTERS = 49  # "z" and base58 of 35 bytes that begin with e7


def parse_chat_key(text: str) -> bytes:
    """Return the compressed key of a text, in any form that people paste.

    One form is hex of a key of 33 or 65 bytes, with or without ``0x``. The other is Status' short form ``zQ3sh…``:
    multibase base58btc of the varint e7 01 and the compressed key. Raises BadPublicKey for anything else.
    """
    encoded = _from_multibase(text) if text.startswith("z") else _from_hex(text.removeprefix("0x"))
    return parse_public_key(encoded).format()


def _from_hex(digits: str) -> bytes:
    try:
        # fromhex skips white space, so the length is checked below.
        encoded = bytes.fromhex(digits)
    except ValueError as error:
        raise BadPublicKey from error
    if len(digits) != 2 * len(encoded):
        raise BadPublicKey
    return encoded


def _from_multibase(text: str) -> bytes:
    if len(text) != _MULTIBASE_CHARACTERS:
        raise BadPublicKey
    number = 0
    for character in text[1:]:
        digit = _BASE58.find(character)
        if digit < 0:
            raise BadPublicKey
        number = number * 58 + digit
    encoded = number.to_bytes(COMPRESSED_BYTES + 3, "big").removeprefix(b"\0")
    if not encoded.startswith(_SECP256K1_PUB) or len(encoded) != COMPRESSED_BYTES + 2:
        raise BadPublicKey
    return encoded[2:]
