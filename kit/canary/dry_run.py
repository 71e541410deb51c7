"""The device token of a canary's dry run. Delivery recognises it, and has the gateway drop the push."""

import hmac


def token_of(private_key: bytes) -> str:
    """Return the token of a server with this key, as 64 hex digits. Nobody else can compute and register it."""
    return hmac.digest(private_key, b"canary dry run", "sha256").hex()
