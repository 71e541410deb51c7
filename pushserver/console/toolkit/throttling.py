"""Rate limits of the API, per minute: one for each token, and two for callers without a valid token."""

import threading
from ipaddress import ip_address
from typing import Any

from django.conf import settings
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from kit.buckets.bucket import per_minute
from kit.buckets.shared import Bucket, own_buckets

# Calls without a valid token: from one address, and from all addresses together.
ANONYMOUS_PER_MINUTE = 30
ALL_ANONYMOUS_PER_MINUTE = 3000
ANONYMOUS = b"a"  # key of the bucket for all addresses
IPV4_BYTES = 4
# The process's buckets are not safe for threads: only one thread may use them at a time.
_ONE_AT_A_TIME = threading.Lock()


class _Throttle(BaseThrottle):
    """A throttle with token buckets that all web processes share (see `kit.buckets.shared`)."""

    def __init__(self) -> None:
        self._wait_seconds = 0.0

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
    """Limit callers without a valid token by address, so that nobody can guess tokens one after the other.

    A caller with one IPv6 address usually owns a /64 network of them, so the whole network counts as one address.
    """

    def buckets_of(self, request: Request) -> list[Bucket]:
        network = _network(str(self.get_ident(request)))
        return [
            (b"a" + network, per_minute(ANONYMOUS_PER_MINUTE)),
            (ANONYMOUS, per_minute(ALL_ANONYMOUS_PER_MINUTE)),
        ]


def _network(address: str) -> bytes:
    """Return the part of an address that identifies a caller: all of IPv4, or the first 8 bytes of IPv6."""
    try:
        packed = ip_address(address).packed
    except ValueError:  # a proxy may write anything
        return b"?"
    return packed[:8] if len(packed) > IPV4_BYTES else packed
