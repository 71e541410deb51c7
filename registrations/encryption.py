"""Encryption of single database fields, and keyed digests for comparing encrypted values. See docs/backup.md.

Every value begins with the id of its key, so that several keys can be in use during a rotation. The first key encrypts,
and all keys decrypt. No other module reads the field encryption keys from the settings.
"""

import hashlib
import hmac
import os
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV
from django.conf import settings

KEY_ID_SIZE = 4
NONCE_SIZE = 12


class Purpose(StrEnum):
    """The kind of value in a field. It is bound into ciphertext and digest, so a value that was moved to another column
    does not decrypt.
    """

    ACCESS_TOKEN = "access-token"  # noqa: S105 - a label
    ADDRESS = "device-token"
    CONTENT = "registration-content"
    TOPIC_KEY = "topic-key"
    SENDER = "sender"


class DecryptionError(Exception):
    """The field was encrypted with a key that is no longer listed, or it was altered."""


class Keyring:
    """AES-256-GCM-SIV (RFC 8452) and HMAC-SHA-256 under the field encryption keys (32 bytes each).

    Nonces are random. A repeated nonce reveals at most that two values are equal, where AES-GCM would reveal its
    authentication key. So the number of values per key needs no limit.
    """

    def __init__(self, keys: Sequence[bytes], random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        ids = [hashlib.sha256(b"id of a field key of AES-GCM-SIV" + key).digest()[:KEY_ID_SIZE] for key in keys]
        self.current_id = ids[0]
        self._ciphers = {key_id: AESGCMSIV(key) for key_id, key in zip(ids, keys, strict=True)}
        # Digests have their own key, because one key must not serve two algorithms.
        self._digest_keys = {
            key_id: hmac.digest(key, b"field digest", "sha256") for key_id, key in zip(ids, keys, strict=True)
        }
        self._random_bytes = random_bytes

    def encrypt(self, purpose: Purpose, plaintext: bytes) -> bytes:
        """Return key id (4 bytes) ‖ nonce (12) ‖ ciphertext ‖ tag (16)."""
        nonce = self._random_bytes(NONCE_SIZE)
        return self.current_id + nonce + self._ciphers[self.current_id].encrypt(nonce, plaintext, purpose.encode())

    def decrypt(self, purpose: Purpose, field: bytes) -> bytes:
        """Return the plaintext of a field.

        Raises DecryptionError when its key is not listed, or when the field was altered.
        """
        cipher = self._ciphers.get(field[:KEY_ID_SIZE])
        if cipher is None:
            raise DecryptionError("the key of this field is not among FIELD_ENCRYPTION_KEYS")
        nonce, sealed = field[KEY_ID_SIZE : KEY_ID_SIZE + NONCE_SIZE], field[KEY_ID_SIZE + NONCE_SIZE :]
        try:
            return cipher.decrypt(nonce, sealed, purpose.encode())
        except (InvalidTag, ValueError):
            raise DecryptionError("the field was altered") from None

    def digest(self, purpose: Purpose, value: bytes) -> bytes:
        """Return key id (4 bytes) ‖ HMAC-SHA-256 (32 bytes), which identifies a value without revealing it."""
        return self._digest(self.current_id, purpose, value)

    def matches(self, purpose: Purpose, value: bytes, digest: bytes | None) -> bool:
        """Return whether ``digest`` is the digest of ``value`` under the key that it names, in constant time."""
        key_id = digest[:KEY_ID_SIZE] if digest else b""
        return key_id in self._digest_keys and hmac.compare_digest(self._digest(key_id, purpose, value), digest or b"")

    def _digest(self, key_id: bytes, purpose: Purpose, value: bytes) -> bytes:
        return key_id + hmac.digest(self._digest_keys[key_id], purpose.encode() + b"\0" + value, "sha256")


@cache
def keyring() -> Keyring:
    """Return the keyring of this process."""
    return Keyring(settings.FIELD_ENCRYPTION_KEYS)
