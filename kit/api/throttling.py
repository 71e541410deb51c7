"""Limits of calls per minute: of each token, and of callers without an accepted one."""

import threading
from ipaddress import ip_address
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from kit.buckets.bucket import BucketLimits, per_minute
from kit.buckets.shared import own_buckets

# Calls without an accepted token: of one address, and of all together.
ANONYMOUS_PER_MINUTE = 30
ALL_ANONYMOUS_PER_MINUTE = 3000
ANONYMOUS = b"a"  # the bucket of all of them
IPV4_BYTES = 4
# The memory of buckets belongs to one thread at a time.
_ONE_AT_A_TIME = threading.Lock()


class _Throttle(BaseThrottle):
    """A throttle whose buckets all web processes share, see `kit.buckets.shared`."""

    def __init__(self) -> None:
        self._wait_seconds = 0.0

    def allow_request(self, request: Request, view: Any) -> bool:  # noqa: ARG002 - as the framework calls it
        wanted = self.buckets_of(request)
        with _ONE_AT_A_TIME, transaction.atomic():
            spending = own_buckets().open(wanted, dict.fromkeys(wanted, 1), at=timezone.now())
            is_allowed = spending.take(list(wanted))
            spending.write()
            own_buckets().keep()
        self._wait_seconds = max((limits[0].token_seconds for limits in wanted.values()), default=0.0)
        return is_allowed

    def wait(self) -> float:
        return self._wait_seconds

    def buckets_of(self, request: Request) -> dict[bytes, BucketLimits]:
        """Return the limits that a call counts for, by the key of their bucket."""
        raise NotImplementedError


class PerToken(_Throttle):
    """Limit how often each token is used."""

    def buckets_of(self, request: Request) -> dict[bytes, BucketLimits]:
        return {b"t%d" % request.auth.pk: per_minute(settings.API_CALLS_PER_MINUTE)} if request.auth else {}


class PerAddress(_Throttle):
    """Limit callers without an accepted token by address, so that nobody can guess tokens one after the other.

    Who has one address of IPv6 has 2 ** 64 of them, which count as one.
    """

    def buckets_of(self, request: Request) -> dict[bytes, BucketLimits]:
        network = _network(str(self.get_ident(request)))
        return {b"a" + network: per_minute(ANONYMOUS_PER_MINUTE), ANONYMOUS: per_minute(ALL_ANONYMOUS_PER_MINUTE)}


def _network(address: str) -> bytes:
    """Return what one caller has of an address: all of IPv4, the first half of IPv6."""
    try:
        packed = ip_address(address).packed
    except ValueError:  # a proxy may write anything
        return b"?"
    return packed[:8] if len(packed) > IPV4_BYTES else packed
