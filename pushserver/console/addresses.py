"""Find the address of a login for django-axes, which locks out people who guess passwords at that address."""

from ipaddress import ip_address

from django.http import HttpRequest
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle


def client_address(request: HttpRequest) -> str | None:
    """Return the address of the client as the API finds it: behind our proxy what the proxy says, never what was said
    to it.

    Where the proxy says nothing useful, return the address of the proxy: all logins through it then share one count of
    failures.
    """
    said: str | None = BaseThrottle().get_ident(Request(request))
    return _address(said) or _address(request.META.get("REMOTE_ADDR"))


def _address(said: str | None) -> str | None:
    """Return the address in the form that a database column takes, or None when it is not one."""
    try:
        return str(ip_address(_without_port(said or "").partition("%")[0]))
    except ValueError:
        return None


def _without_port(said: str) -> str:
    """Remove the port that some proxies add, and the brackets that they then put around an IPv6 address."""
    if said.startswith("["):
        return said[1:].partition("]")[0]
    return said.partition(":")[0] if said.count(":") == 1 else said
