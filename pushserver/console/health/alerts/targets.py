"""Targets of alerts: the mail addresses and webhooks of ALERTS_TO."""

import hashlib
from dataclasses import dataclass
from urllib.parse import urlsplit

from django.conf import settings

from kit.display import host_of

GOOGLE_CHAT = "chat.googleapis.com"


@dataclass(frozen=True, slots=True)
class Target:
    """A mail address or the URL of a webhook. The URL may hold a secret, so only ``label`` is stored and shown."""

    address: str

    @property
    def is_webhook(self) -> bool:
        return "://" in self.address

    @property
    def takes_text_alone(self) -> bool:
        """Return whether the webhook refuses JSON with a field that it does not know."""
        return urlsplit(self.address).hostname == GOOGLE_CHAT

    @property
    def label(self) -> str:
        """Return the mail address, or the host of the webhook with the first digits of the hash of its URL."""
        if not self.is_webhook:
            return self.address
        return f"{host_of(self.address)} ({hashlib.sha256(self.address.encode()).hexdigest()[:8]})"


def targets() -> dict[str, Target]:
    """Return the targets by their labels."""
    return {target.label: target for target in map(Target, settings.ALERTS_TO)}
