"""SQLCipher files as status-go writes them, opened in memory: the plain form must not reach a disk. Pure.

A file is a sequence of pages of 8192 bytes. The first 16 bytes of the file are a salt. Each page ends with a reserve
of 48 bytes: an initialisation vector (16), an HMAC-SHA1 (20) over the rest of the page, the vector and the page's
number, and padding. Pages are encrypted with AES-256-CBC; keys come from the password by PBKDF2-HMAC-SHA1.

Source: https://www.zetetic.net/sqlcipher/design, and the settings of status-go's `sqlite` package.
"""

import hmac
from hashlib import pbkdf2_hmac

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC

ITERATIONS = 3_200  # status-go's default for deriving a key
PAGE_BYTES = 8_192
SALT_BYTES, VECTOR_BYTES, MAC_BYTES, RESERVE_BYTES = 16, 16, 20, 48
KEY_BYTES = 32
PLAIN_HEADER = b"SQLite format 3\0"
# The header's bytes for the versions of reading and writing: 2 with a write-ahead log, 1 without.
_VERSIONS = slice(18, 20)
_HMAC_SALT_MASK = 0x3A


class NotReadableError(ValueError):
    """The file is damaged, or the password is wrong."""


def is_encrypted(data: bytes) -> bool:
    """Return whether the data is anything but a plain SQLite database."""
    return not data.startswith(PLAIN_HEADER)


def decrypt(data: bytes, password: bytes, *, iterations: int = ITERATIONS) -> bytes:
    """Return the plain SQLite database. Raises NotReadableError when a page does not verify or is incomplete."""
    if not data or len(data) % PAGE_BYTES:
        raise NotReadableError("its size is not that of whole pages")
    salt = data[:SALT_BYTES]
    key = pbkdf2_hmac("sha1", password, salt, iterations, KEY_BYTES)
    hmac_key = pbkdf2_hmac("sha1", key, bytes(byte ^ _HMAC_SALT_MASK for byte in salt), 2, KEY_BYTES)
    pages = (data[start : start + PAGE_BYTES] for start in range(0, len(data), PAGE_BYTES))
    plain = bytearray().join(_decrypt_page(page, number, key, hmac_key) for number, page in enumerate(pages, 1))
    return bytes(plain)


def standing_alone(database: bytes) -> bytes:
    """Return a plain database marked as one without a write-ahead log. SQLite opens no other kind in memory."""
    return database[: _VERSIONS.start] + b"\x01\x01" + database[_VERSIONS.stop :]


def _decrypt_page(page: bytes, number: int, key: bytes, hmac_key: bytes) -> bytes:
    start = SALT_BYTES if number == 1 else 0
    end = PAGE_BYTES - RESERVE_BYTES
    vector = page[end : end + VECTOR_BYTES]
    mac = page[end + VECTOR_BYTES : end + VECTOR_BYTES + MAC_BYTES]
    signed = page[start : end + VECTOR_BYTES] + number.to_bytes(4, "little")
    if not hmac.compare_digest(mac, hmac.digest(hmac_key, signed, "sha1")):
        raise NotReadableError(f"page {number} does not verify")
    cipher = Cipher(AES(key), CBC(vector)).decryptor()
    plain = cipher.update(page[start:end]) + cipher.finalize()
    return (PLAIN_HEADER if number == 1 else b"") + plain + bytes(RESERVE_BYTES)
