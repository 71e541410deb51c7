"""secp256k1 keys: forms, hashes, signatures, grants, shared secrets, identities, and what is sealed with them.

A public key travels compressed, as 33 bytes. There are two hashes of it with different inputs: the key hash, by which
registrations are found, takes the 33 bytes, and the author hash takes the ASCII chat key.
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256, shake_256

from coincurve import PrivateKey, PublicKey
from Crypto.Hash import keccak
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from waku_bridge.codec.errors import BadFrame, BadPublicKey, BadSignature, BodyNotDecryptable, NotDecryptable

SIGNATURE_BYTES = 65


def sign(data: bytes, private_key: PrivateKey) -> bytes:
    """Sign Keccak-256 of ``data``.

    The signature is deterministic (RFC 6979) and low-s: the same input gives the same 65 bytes.
    """
    return private_key.sign_recoverable(keccak256(data), hasher=None)


def recover(signature: bytes, data: bytes) -> PublicKey:
    """Return the key that signed ``data`` (65 bytes r ‖ s ‖ v, v in 0..3; 27 and 28 are refused, as by status-go).

    A wrong signature does not fail: it recovers some other key. So always compare the key with the expected one.
    High-s twins are accepted. Raises BadSignature when no key can be recovered.
    """
    try:
        return PublicKey.from_signature_and_message(signature, keccak256(data), hasher=None)
    except ValueError as error:
        raise BadSignature from error


def grant_material(client: bytes, server: bytes, access_token: str) -> bytes:
    """Return the signed bytes of a grant: both compressed keys (33 bytes each) and the token's text exactly as sent.

    A grant is a client's signature that authorises one server to give one access token to senders.
    Source: status-go protocol/pushnotificationclient/client.go, protocol/pushnotificationserver/server.go.
    """
    return client + server + access_token.encode()


def sign_grant(client: PrivateKey, server: bytes, access_token: str) -> bytes:
    """Return the 65-byte grant for a server's compressed key. It is deterministic."""
    return sign(grant_material(client.public_key.format(), server, access_token), client)


def verify_grant(grant: bytes, *, client: bytes, server: bytes, access_token: str) -> bool:
    """Return whether the client (33 bytes) granted this token to this server (33 bytes).

    It never raises, and costs one recovery.
    """
    try:
        return recover(grant, grant_material(client, server, access_token)).format() == client
    except BadSignature:
        return False


# Randomness is an argument everywhere. Production code passes `os.urandom`.
RandomBytes = Callable[[int], bytes]

_DRAWS = 16


def not_all_zero(random_bytes: RandomBytes, size: int) -> bytes:
    """Draw ``size`` bytes, again and again until one of them is not zero. One byte is zero once in 256 draws.

    Raises ValueError when the source returns nothing but zeros.
    """
    for _ in range(_DRAWS):
        drawn = random_bytes(size)
        if any(drawn):
            return drawn
    raise ValueError("the source of randomness returns zeros only")


HASH_BYTES = 64


def keccak256(data: bytes) -> bytes:
    """Return Keccak-256 (32 bytes) with its original padding, as in Ethereum. SHA3-256 pads differently."""
    return keccak.new(digest_bits=256, data=data).digest()


def shake256(data: bytes) -> bytes:
    """Return SHAKE-256 (FIPS 202) with 64 bytes of output, the only length that this protocol uses."""
    return shake_256(data).digest(HASH_BYTES)


def chat_hash(chat_id: str) -> bytes:
    """Return the hash of a chat in the lists of a registration. The id of a one-to-one chat is the peer's chat key."""
    return shake256(chat_id.encode())


COMPRESSED_BYTES = 33
UNCOMPRESSED_BYTES = 65


@dataclass(frozen=True, slots=True)
class Identity:
    """A private key with the values derived from it, which are computed once.

    ``pub33`` is its compressed public key, and ``pub65`` the uncompressed one. ``key_hash`` (64 bytes) is SHAKE-256 of
    ``pub33``. Two identities are equal when their public keys are. The repr holds no secret.
    """

    private_key: PrivateKey = field(repr=False, compare=False)
    pub33: bytes = field(init=False)
    pub65: bytes = field(init=False, repr=False, compare=False)
    key_hash: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        derived = {
            "pub33": self.private_key.public_key.format(),
            "pub65": self.private_key.public_key.format(compressed=False),
            "key_hash": key_hash(self.private_key.public_key.format()),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)


DecryptionKey = Identity | bytes
"""A key that may open a payload: an identity (ECIES) or the symmetric key (32 bytes) of a topic."""


def key_hash(public_key: bytes) -> bytes:
    """Return SHAKE-256 (64 bytes) of the compressed key. It identifies registrations and names query topics."""
    return shake256(public_key)


def chat_key(public_key: bytes) -> str:
    """Return the chat key ``0x04…``, the 132 characters that identify a user, from a key in either form."""
    return "0x" + parse_public_key(public_key).format(compressed=False).hex()


def author_hash(public_key: bytes) -> bytes:
    """Return SHAKE-256 (64 bytes) of the ASCII chat key, which names the author in notifications and in lists."""
    return shake256(chat_key(public_key).encode())


def compress(pub65: bytes) -> bytes:
    """Return the 33-byte form of an uncompressed key that is known to be valid."""
    return bytes((2 + (pub65[-1] & 1),)) + pub65[1:COMPRESSED_BYTES]


def parse_public_key(public_key: bytes) -> PublicKey:
    """Read a key of 33 or 65 bytes.

    Raises BadPublicKey when they are no point of the curve.
    """
    # libsecp256k1 also reads the hybrid forms 06 and 07, which no client sends.
    if public_key[:1] not in {b"\x02", b"\x03", b"\x04"}:
        raise BadPublicKey
    try:
        return PublicKey(public_key)
    except ValueError as error:
        raise BadPublicKey from error


# Chat keys as people paste them
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


def shared_key(private_key: PrivateKey, public_key: PublicKey) -> bytes:
    """Return the x-coordinate (32 bytes, zero-padded on the left) of the product of the two keys.

    It is neither hashed nor expanded: status-go uses it directly as an AES-256 key. libsecp256k1's own ECDH would hash
    it, so this function multiplies the point.
    """
    # Unlike ECDH, the multiplication does not run in constant time. A peer cannot measure it: a message is opened in a
    # batch, some time after it arrived, and its answer leaves with the other answers of the batch.
    return public_key.multiply(private_key.secret).format()[1:]


# The payload of a Waku message (26/WAKU2-PAYLOAD) ---------------------------------------------------------------------
#
# It is a padded, signed frame, encrypted to a key or under a topic's key. Bodies that are sealed between two keys are
# encrypted as on a topic, but carry the nonce first.
#
#     frame          flags ‖ length ‖ data ‖ padding ‖ signature
#       flags        bits 0-1 = n, the number of length bytes; bit 2 = signed; other bits are ignored
#       length       n bytes, little-endian
#       padding      up to the signature or the end
#       signature    65 bytes, when signed, over everything before it
#     to a key       R (65 bytes, 04…) ‖ iv (16) ‖ AES-128-CTR(frame) ‖ HMAC-SHA256(iv ‖ ciphertext) (32)
#     on a topic     AES-256-GCM(frame) ‖ tag (16) ‖ nonce (12)
#     sealed body    nonce (12) ‖ AES-256-GCM(body) ‖ tag (16)
#
# Source: go-waku waku/v2/payload/waku_payload.go (validateAndParse), go-ethereum crypto/ecies/ecies.go without shared
# information, status-go protocol/common/crypto.go.

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
