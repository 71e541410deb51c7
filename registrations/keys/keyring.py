"""The keyring of this server. No other module reads the field encryption keys from the settings."""

from functools import cache

from django.conf import settings

from registrations.keys.encryption import Keyring


@cache
def keyring() -> Keyring:
    """Return the keyring of this process."""
    return Keyring(settings.FIELD_ENCRYPTION_KEYS)
