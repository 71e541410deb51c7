"""The device token by which delivery recognises a push of a canary that its gateway is to drop."""

import hmac


def token_of(private_key: bytes) -> str:
    """Return the token of a server with this key, as 64 hex digits. Nobody else can know and register it."""
    return hmac.digest(private_key, b"canary dry run", "sha256").hex()
