"""The payload of a Waku message (26/WAKU2-PAYLOAD): a padded, signed frame, encrypted to a key or under a topic's key.

Also here: bodies that are sealed between two keys, which are encrypted as on a topic but carry the nonce first.

    frame          flags ‖ length ‖ data ‖ padding ‖ signature
      flags        bits 0-1 = n, the number of length bytes; bit 2 = signed; other bits are ignored
      length       n bytes, little-endian
      padding      up to the signature or the end
      signature    65 bytes, when signed, over everything before it
    to a key       R (65 bytes, 04…) ‖ iv (16) ‖ AES-128-CTR(frame) ‖ HMAC-SHA256(iv ‖ ciphertext) (32)
    on a topic     AES-256-GCM(frame) ‖ tag (16) ‖ nonce (12)
    sealed body    nonce (12) ‖ AES-256-GCM(body) ‖ tag (16)

Source: go-waku waku/v2/payload/waku_payload.go (validateAndParse), go-ethereum crypto/ecies/ecies.go without shared
information, status-go protocol/common/crypto.go.
"""

import hmac
from hashlib import sha256

from coincurve import PrivateKey, PublicKey
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from waku_bridge.codec.errors import BadFrame, BadPublicKey, BodyNotDecryptable, NotDecryptable
from waku_bridge.codec.keys import (
    SIGNATURE_BYTES,
    UNCOMPRESSED_BYTES,
    RandomBytes,
    not_all_zero,
    parse_public_key,
    recover,
    shared_key,
    sign,
)

LENGTH_BYTES_MASK = 0x03
SIGNED_FLAG = 0x04
BLOCK_BYTES = 256
MAX_DATA_BYTES = 2**24 - 1
IV_BYTES = 16
MAC_BYTES = 32
ECIES_OVERHEAD_BYTES = UNCOMPRESSED_BYTES + IV_BYTES + MAC_BYTES
NONCE_BYTES = 12
GCM_OVERHEAD_BYTES = NONCE_BYTES + 16


def parse_frame(frame: bytes) -> tuple[bytes, PublicKey | None]:
    """Return data and signer of a frame. The signer is None when the frame is not signed.

    Raises BadFrame when the lengths contradict each other and BadSignature when no key can be recovered.
    """
    if not frame:
        raise BadFrame
    if not frame[0] & SIGNED_FLAG:
        return _data(frame, len(frame)), None
    end = len(frame) - SIGNATURE_BYTES
    if end <= 1:
        raise BadFrame
    return _data(frame, end), recover(frame[end:], frame[:end])


def _data(frame: bytes, end: int) -> bytes:
    begin = 1 + (frame[0] & LENGTH_BYTES_MASK)
    length = int.from_bytes(frame[1:begin], "little")  # without length bytes there is no data, and the rest is padding
    if begin + length > end:
        raise BadFrame
    return frame[begin : begin + length]


def build_frame(data: bytes, signer: PrivateKey | None, random_bytes: RandomBytes) -> bytes:
    """Return a frame of a multiple of 256 bytes, signed when there is a signer.

    It draws its padding (1 to 256 bytes) at once. Raises ValueError when the data is longer than three length bytes can
    say.
    """
    if len(data) > MAX_DATA_BYTES:
        raise ValueError("too much data for one frame")
    length_bytes = max(1, (len(data).bit_length() + 7) // 8)
    flags = length_bytes | (SIGNED_FLAG if signer else 0)
    head = bytes((flags,)) + len(data).to_bytes(length_bytes, "little")
    size = len(head) + len(data) + (SIGNATURE_BYTES if signer else 0)
    unsigned = head + data + not_all_zero(random_bytes, BLOCK_BYTES - size % BLOCK_BYTES)
    return unsigned + sign(unsigned, signer) if signer else unsigned


def seal_to_key(frame: bytes, recipient: bytes, random_bytes: RandomBytes) -> bytes:
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


def unseal_to_key(payload: bytes, private_key: PrivateKey) -> bytes:
    """Return the frame inside. Raises NotDecryptable when it was not sealed for this key or has been changed."""
    if len(payload) < ECIES_OVERHEAD_BYTES or payload[0] != 4:
        raise NotDecryptable
    try:
        ephemeral = parse_public_key(payload[:UNCOMPRESSED_BYTES])
    except BadPublicKey as error:
        raise NotDecryptable from error
    cipher_key, mac_key = _derive(shared_key(private_key, ephemeral))
    sealed = payload[UNCOMPRESSED_BYTES:-MAC_BYTES]
    if not hmac.compare_digest(hmac.digest(mac_key, sealed, "sha256"), payload[-MAC_BYTES:]):
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


def seal_on_topic(frame: bytes, topic_key: bytes, random_bytes: RandomBytes) -> bytes:
    """Encrypt a frame under a topic's key (32 bytes). It draws the nonce. Raises ValueError for a key of zeros."""
    if not any(topic_key):
        raise ValueError("the topic key is all zero")  # status-go refuses it too
    nonce = random_bytes(NONCE_BYTES)
    return AESGCM(topic_key).encrypt(nonce, frame, None) + nonce


def unseal_on_topic(payload: bytes, topic_key: bytes) -> bytes:
    """Return the frame inside.

    Raises NotDecryptable when the payload is too short, for a wrong tag and for a key of zeros.
    """
    if len(payload) < GCM_OVERHEAD_BYTES or not any(topic_key):
        raise NotDecryptable
    try:
        return AESGCM(topic_key).decrypt(payload[-NONCE_BYTES:], payload[:-NONCE_BYTES], None)
    except InvalidTag as error:
        raise NotDecryptable from error


def seal_body(body: bytes, shared: bytes, random_bytes: RandomBytes) -> bytes:
    """Encrypt a body under a shared key (32 bytes). It draws the nonce."""
    nonce = random_bytes(NONCE_BYTES)
    return nonce + AESGCM(shared).encrypt(nonce, body, None)


def unseal_body(sealed: bytes, shared: bytes) -> bytes:
    """Return the body inside. Raises BodyNotDecryptable when it is too short or when the tag does not verify."""
    if len(sealed) < GCM_OVERHEAD_BYTES:
        raise BodyNotDecryptable
    try:
        return AESGCM(shared).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], None)
    except InvalidTag as error:
        raise BodyNotDecryptable from error
