"""Device tokens as Apple and Firebase make them. Their names stand in them, so that a test can look for these."""

import secrets


def firebase_token(name: str = "") -> str:
    """Return a token of Firebase: 163 characters, of which the first are its name."""
    return f"{name or secrets.token_urlsafe(16)}:APA91b".ljust(163, "x")


def apn_token(name: str = "") -> str:
    """Return a token of Apple: 64 characters, of which the first are its name in hex."""
    return (name.encode().hex() or secrets.token_hex(32)).ljust(64, "0")
