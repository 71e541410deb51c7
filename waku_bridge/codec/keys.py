"""secp256k1 keys: forms, hashes, signatures, grants, shared secrets, and identities.

A public key travels compressed, as 33 bytes. There are two hashes of it with different inputs: the key hash, by which
registrations are found, takes the 33 bytes, and the author hash takes the ASCII chat key.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import shake_256

from coincurve import PrivateKey, PublicKey
from Crypto.Hash import keccak

from waku_bridge.codec.errors import BadPublicKey, BadSignature

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


def shared_key(private_key: PrivateKey, public_key: PublicKey) -> bytes:
    """Return the x-coordinate (32 bytes, zero-padded on the left) of the product of the two keys.

    It is neither hashed nor expanded: status-go uses it directly as an AES-256 key. libsecp256k1's own ECDH would hash
    it, so this function multiplies the point.
    """
    # Unlike ECDH, the multiplication does not run in constant time. A peer cannot measure it: a message is opened in a
    # batch, some time after it arrived, and its answer leaves with the other answers of the batch.
    return public_key.multiply(private_key.secret).format()[1:]
