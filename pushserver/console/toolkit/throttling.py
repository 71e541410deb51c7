"""Rate limits of the API, per minute: one for each token, and two for callers without a valid token.

The address of a client is found here for logins, too, by whose networks people who guess passwords are locked out.
"""

import threading
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, cast

from django.conf import settings
from django.http import HttpRequest
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from kit.buckets.bucket import per_minute
from kit.buckets.shared import Bucket, own_buckets

# Calls without a valid token: from one network, and from all networks together.
ANONYMOUS_PER_MINUTE = 30
ALL_ANONYMOUS_PER_MINUTE = 3000
ANONYMOUS = b"a"  # key of the bucket for all networks
# Prefix of the IPv6 network of one customer, who may use all addresses in it.
IPV6_PREFIX_BITS = 64
# The process's buckets are not safe for threads: only one thread may use them at a time.
_ONE_AT_A_TIME = threading.Lock()


class _Throttle(BaseThrottle):
    """A throttle with token buckets that all web processes share (see `kit.buckets.shared`)."""

    _wait_seconds = 0.0

    def allow_request(self, request: Request, view: Any) -> bool:  # noqa: ARG002 - as the framework calls it
        wanted = self.buckets_of(request)
        with _ONE_AT_A_TIME:
            is_allowed = own_buckets().take(wanted, now=timezone.now())
            own_buckets().keep()
        self._wait_seconds = max((limits[0].token_seconds for _, limits in wanted), default=0.0)
        return is_allowed

    def wait(self) -> float:
        return self._wait_seconds

    def buckets_of(self, request: Request) -> list[Bucket]:
        """Return the buckets of a call."""
        raise NotImplementedError


class PerToken(_Throttle):
    """Limit the calls of each token."""

    def buckets_of(self, request: Request) -> list[Bucket]:
        return [(b"t%d" % request.auth.pk, per_minute(settings.API_CALLS_PER_MINUTE))] if request.auth else []


class PerAddress(_Throttle):
    """Limit callers without a valid token by network, so that nobody can guess tokens one after the other."""

    def buckets_of(self, request: Request) -> list[Bucket]:
        network = client_network(request).encode()
        return [
            (ANONYMOUS + network, per_minute(ANONYMOUS_PER_MINUTE)),
            (ANONYMOUS, per_minute(ALL_ANONYMOUS_PER_MINUTE)),
        ]


def client_network(request: HttpRequest | Request) -> str:
    """Return the address under which a client is counted: for IPv6 the first address of its /64 network."""
    address = client_address(request) or ""
    parsed = ip_address(address) if address else None
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return str(ip_network((parsed, IPV6_PREFIX_BITS), strict=False).network_address)


def client_address(request: HttpRequest | Request) -> str | None:
    """Return the address of the client. Behind our proxy only the proxy's own entry counts, never the entries that a
    client sent.

    Without a usable entry, return the address of the proxy. All clients through it then share one count.
    """
    address: str | None = BaseThrottle().get_ident(cast(Request, request))  # it reads META alone, which both have
    return _address(address) or _address(request.META.get("REMOTE_ADDR"))


def _address(address: str | None) -> str | None:
    """Return the address in a form that fits the database column, or None if it is not an address."""
    try:
        return str(ip_address(_without_port(address or "").partition("%")[0]))
    except ValueError:
        return None


def _without_port(address: str) -> str:
    """Remove the port that some proxies add, and the brackets around an IPv6 address with a port."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address
