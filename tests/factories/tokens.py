"""Device tokens in the formats of Apple and Firebase. Each contains its name, so that a test can search for it."""

import secrets


def firebase_token(name: str = "") -> str:
    """Return a Firebase token of 163 characters that begins with ``name``."""
    return f"{name or secrets.token_urlsafe(16)}:APA91b".ljust(163, "x")


def apn_token(name: str = "") -> str:
    """Return an Apple token of 64 characters that begins with ``name`` in hex."""
    return (name.encode().hex() or secrets.token_hex(32)).ljust(64, "0")
