"""Access to the API: `Authorization: Bearer <token>`, one scope per endpoint, and a limit of calls per minute."""

import threading
from ipaddress import ip_address
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from kit.buckets.bucket import BucketLimits, per_minute
from kit.buckets.shared import own_buckets
from pushserver.api.tokens import recognise
from pushserver.models import ApiToken

KEYWORD = b"bearer"
# Calls without an accepted token: of one address, and of all together.
ANONYMOUS_PER_MINUTE = 30
ALL_ANONYMOUS_PER_MINUTE = 3000
ANONYMOUS = b"a"  # the bucket of all of them
IPV4_BYTES = 4
# The memory of buckets belongs to one thread at a time.
_ONE_AT_A_TIME = threading.Lock()


class Program:
    """A program that calls the API. It has the attributes of a user that Django's own parts ask for."""

    is_authenticated = True
    is_anonymous = is_staff = False
    pk = None

    def __init__(self, token: ApiToken) -> None:
        self.token = token

    def __str__(self) -> str:
        return f"API token {self.token}"


class BearerAuthentication(BaseAuthentication):
    """Accept `Authorization: Bearer <token>` where the token exists, has not expired and was not revoked."""

    def authenticate(self, request: Request) -> tuple[Program, ApiToken] | None:
        """Return the program and its token, or None without a bearer token. Raises AuthenticationFailed."""
        keyword, _, text = get_authorization_header(request).partition(b" ")
        if keyword.lower() != KEYWORD:
            return None
        token = recognise(text.strip().decode(errors="replace"), now=timezone.now())
        if token is None:
            raise AuthenticationFailed("This token is unknown, expired or revoked.")
        return Program(token), token

    def authenticate_header(self, request: Request) -> str:  # noqa: ARG002
        return "Bearer"


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = BearerAuthentication
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:  # noqa: ARG002
        return {"type": "http", "scheme": "bearer", "description": "A token made in the console, under API tokens."}


class HasScope(BasePermission):
    """Allow a request whose token has the scope that the view names in ``scope``."""

    message = "The token has not the scope for this."

    def has_permission(self, request: Request, view: Any) -> bool:
        return isinstance(request.auth, ApiToken) and view.scope in request.auth.scopes


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
        is_token = isinstance(request.auth, ApiToken)
        return {b"t%d" % request.auth.pk: per_minute(settings.API_CALLS_PER_MINUTE)} if is_token else {}


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
