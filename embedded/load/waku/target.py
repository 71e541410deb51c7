"""Which targets may be put under load without being asked twice. Pure."""

from ipaddress import ip_address
from urllib.parse import urlsplit


def is_loopback(url: str) -> bool:
    """Return whether a URL can only mean this machine. Names are not resolved, because what they mean may change."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
