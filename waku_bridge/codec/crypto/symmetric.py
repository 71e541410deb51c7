"""AES-256-GCM without associated data, in the two layouts of the protocol.

Frames on a public topic carry the nonce last. Bodies sealed between two keys carry it first.
Source: 26/WAKU2-PAYLOAD, "Symmetric"; status-go protocol/common/crypto.go.
"""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from waku_bridge.codec.errors import BodyNotDecryptable, NotDecryptable
from waku_bridge.codec.keys import RandomBytes

NONCE_BYTES = 12
TAG_BYTES = 16
OVERHEAD_BYTES = NONCE_BYTES + TAG_BYTES


def seal_frame(frame: bytes, topic_key: bytes, random_bytes: RandomBytes) -> bytes:
    """Encrypt a frame under a 32-byte key: ciphertext ‖ tag (16) ‖ nonce (12). It draws the nonce.

    Raises ValueError for a key of zeros.
    """
    if not any(topic_key):
        raise ValueError("the topic key is all zero")  # status-go refuses it too
    nonce = random_bytes(NONCE_BYTES)
    return AESGCM(topic_key).encrypt(nonce, frame, None) + nonce


def unseal_frame(payload: bytes, topic_key: bytes) -> bytes:
    """Return the frame inside.

    Raises NotDecryptable when the payload is too short, for a wrong tag and for a key of zeros.
    """
    if len(payload) < OVERHEAD_BYTES or not any(topic_key):
        raise NotDecryptable
    try:
        return AESGCM(topic_key).decrypt(payload[-NONCE_BYTES:], payload[:-NONCE_BYTES], None)
    except InvalidTag as error:
        raise NotDecryptable from error


def seal_body(body: bytes, shared: bytes, random_bytes: RandomBytes) -> bytes:
    """Encrypt a body under a 32-byte shared key: nonce (12) ‖ ciphertext ‖ tag (16). It draws the nonce."""
    nonce = random_bytes(NONCE_BYTES)
    return nonce + AESGCM(shared).encrypt(nonce, body, None)


def unseal_body(sealed: bytes, shared: bytes) -> bytes:
    """Return the body inside.

    Raises BodyNotDecryptable when it is too short or when the tag does not verify.
    """
    if len(sealed) < OVERHEAD_BYTES:
        raise BodyNotDecryptable
    try:
        return AESGCM(shared).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], None)
    except InvalidTag as error:
        raise BodyNotDecryptable from error
