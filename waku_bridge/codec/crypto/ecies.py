"""Frames for one key: ECIES over secp256k1 as go-ethereum has it, without shared information.

R (65 bytes, 04…) ‖ iv (16) ‖ AES-128-CTR(frame) ‖ HMAC-SHA256(iv ‖ ciphertext) (32)

Source: go-ethereum crypto/ecies/ecies.go, called from go-waku waku/v2/payload/waku_payload.go.
"""

import hmac
from hashlib import sha256

from coincurve import PrivateKey, PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from waku_bridge.codec.errors import BadPublicKey, NotDecryptable
from waku_bridge.codec.keys import UNCOMPRESSED_BYTES, RandomBytes, not_all_zero, parse_public_key, shared_key

IV_BYTES = 16
TAG_BYTES = 32
OVERHEAD_BYTES = UNCOMPRESSED_BYTES + IV_BYTES + TAG_BYTES


def seal(frame: bytes, recipient: bytes, random_bytes: RandomBytes) -> bytes:
    """Encrypt to a compressed key. It draws the ephemeral private key (32 bytes), then the iv (16 bytes).

    Raises BadPublicKey when the recipient is no point of the curve.
    """
    point = parse_public_key(recipient)
    ephemeral = not_all_zero(random_bytes, 32)
    iv = random_bytes(IV_BYTES)
    cipher_key, mac_key = _derive(point.multiply(ephemeral).format()[1:])
    sealed = iv + _counter_mode(cipher_key, iv, frame)
    # from_secret derives one key. A PrivateKey would derive a second one, for Schnorr, at the same price.
    return PublicKey.from_secret(ephemeral).format(compressed=False) + sealed + hmac.digest(mac_key, sealed, "sha256")


def unseal(payload: bytes, private_key: PrivateKey) -> bytes:
    """Return the frame inside.

    Raises NotDecryptable when it was not sealed for this key or has been changed.
    """
    if len(payload) < OVERHEAD_BYTES or payload[0] != 4:
        raise NotDecryptable
    try:
        ephemeral = parse_public_key(payload[:UNCOMPRESSED_BYTES])
    except BadPublicKey as error:
        raise NotDecryptable from error
    cipher_key, mac_key = _derive(shared_key(private_key, ephemeral))
    sealed = payload[UNCOMPRESSED_BYTES:-TAG_BYTES]
    if not hmac.compare_digest(hmac.digest(mac_key, sealed, "sha256"), payload[-TAG_BYTES:]):
        raise NotDecryptable
    return _counter_mode(cipher_key, sealed[:IV_BYTES], sealed[IV_BYTES:])


def _derive(shared: bytes) -> tuple[bytes, bytes]:
    """Return cipher key (16 bytes) and MAC key (32 bytes).

    They are one block of NIST SP 800-56A's concatenation KDF, split in two.
    """
    block = sha256(b"\0\0\0\1" + shared).digest()
    return block[:16], sha256(block[16:]).digest()


def _counter_mode(key: bytes, iv: bytes, data: bytes) -> bytes:
    """Apply AES-128-CTR, which is the same in both directions."""
    return Cipher(algorithms.AES(key), modes.CTR(iv)).encryptor().update(data)
