"""65-byte recoverable signatures r ‖ s ‖ v over Keccak-256, v in 0..3 (27 and 28 are refused, as by status-go).

A wrong signature does not fail: it recovers some other key. Never trust that it verifies, but only that it is the
expected key.

Source: status-go eth-node/crypto/gethcrypto.go, common/utils.go (RecoverKey).
"""

from coincurve import PrivateKey, PublicKey

from waku_bridge.codec.errors import BadSignature
from waku_bridge.codec.hashes import keccak256

SIGNATURE_BYTES = 65


def sign(data: bytes, private_key: PrivateKey) -> bytes:
    """Sign Keccak-256 of ``data``.

    The signature is deterministic (RFC 6979) and low-s: the same input gives the same 65 bytes.
    """
    return private_key.sign_recoverable(keccak256(data), hasher=None)


def recover(signature: bytes, data: bytes) -> PublicKey:
    """Return the key that signed ``data``. High-s twins are accepted.

    Raises BadSignature when there is none.
    """
    try:
        return PublicKey.from_signature_and_message(signature, keccak256(data), hasher=None)
    except ValueError as error:
        raise BadSignature from error
