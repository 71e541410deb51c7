"""The keyring of this server: the one place that takes the field encryption keys from the settings."""

from functools import cache

from django.conf import settings

from registrations.encryption import Keyring


@cache
def keyring() -> Keyring:
    return Keyring(settings.FIELD_ENCRYPTION_KEYS)
