"""Faults on the way between gorush and one of the providers, and what gorush meets there."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from embedded.gorush.server import Faults
from tests.rig.providers.messages import Break

# A TLS record (RFC 8446, 5.1 and 6) with the fatal alert certificate_expired, in plain text before any handshake.
EXPIRED_CERTIFICATE = bytes([21, 3, 3, 0, 2, 2, 45])


class Way(StrEnum):
    """State of the way to a provider. While it is broken, a push reaches the provider on the way ``RESET`` only."""

    OPEN = ""
    ALERT = "alert"  # each handshake ends with the TLS alert
    GOAWAY = "goaway"  # each request is answered with a GOAWAY that names a reason
    EOF = "eof"  # the connection ends at each request
    RESET = "reset"  # the connection is reset when the provider has accepted the push
    NO_HOST = "no_host"  # the proxy does not find the host


BREAKS: Mapping[Way, Break] = {Way.GOAWAY: Break.GOAWAY, Way.EOF: Break.CLOSE, Way.RESET: Break.RESET}


@dataclass(slots=True)
class ProviderFaults(Faults):
    """Faults of both providers, and the states of the ways to each."""

    apple: str = Way.OPEN.value
    google: str = Way.OPEN.value

    def way_to(self, host: str) -> Way:
        return Way(self.google if host.endswith(".googleapis.com") else self.apple)

    def refusal_of(self, host: str) -> str:
        """Return the words with which the proxy refuses to connect, or an empty string. gorush passes them on."""
        if self.way_to(host) is Way.NO_HOST:
            return f"dial tcp: lookup {host}: no such host"
        return "Bad Gateway" if self.down else ""
