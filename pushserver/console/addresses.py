"""Where a login comes from, for django-axes: who guesses passwords is locked out at the address it guesses from."""

from ipaddress import ip_address

from django.http import HttpRequest
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle


def client_address(request: HttpRequest) -> str | None:
    """Found like that of a caller of the API: behind our proxy what it says, never what was said to it.

    Where it says nothing of use, the proxy's own: then all who come through it share one count of wrong logins.
    """
    said: str | None = BaseThrottle().get_ident(Request(request))
    return _address(said) or _address(request.META.get("REMOTE_ADDR"))


def _address(said: str | None) -> str | None:
    """As a database column takes it."""
    try:
        return str(ip_address(_without_port(said or "").partition("%")[0]))
    except ValueError:
        return None


def _without_port(said: str) -> str:
    """Some proxies add one, and then put brackets around an IPv6 address."""
    if said.startswith("["):
        return said[1:].partition("]")[0]
    return said.partition(":")[0] if said.count(":") == 1 else said
