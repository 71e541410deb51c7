"""The two hash functions of the protocol (status-go: protocol/common/crypto.go, eth-node/crypto)."""

from hashlib import shake_256

from Crypto.Hash import keccak

HASH_BYTES = 64


def keccak256(data: bytes) -> bytes:
    """Return Keccak with its original padding (32 bytes), as Ethereum has it. SHA3-256 is different: it pads
    differently.
    """
    return keccak.new(digest_bits=256, data=data).digest()


def shake256(data: bytes) -> bytes:
    """Return SHAKE-256 (FIPS 202) with 64 bytes of output, the only length that this protocol uses."""
    return shake_256(data).digest(HASH_BYTES)


def chat_hash(chat_id: str) -> bytes:
    """Return what the lists of a registration hold for a chat. The id of a one-to-one chat is the peer's chat key."""
    return shake256(chat_id.encode())
