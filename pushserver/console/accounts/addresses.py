"""Find where a login comes from. django-axes locks out people who guess passwords there."""

from ipaddress import IPv6Address, ip_address, ip_network

from django.http import HttpRequest
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

# What one customer has of IPv6, and may change addresses in.
IPV6_PREFIX_BITS = 64


def client_network(request: HttpRequest) -> str | None:
    """Return the address that failed logins are counted by: of IPv6 the first one of its network of 64 bits."""
    address = client_address(request)
    parsed = ip_address(address) if address else None
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return str(ip_network((parsed, IPV6_PREFIX_BITS), strict=False).network_address)


def client_address(request: HttpRequest) -> str | None:
    """Return the address of the client as the API finds it: behind our proxy what the proxy says, never what was said
    to it.

    Where the proxy says nothing useful, return the address of the proxy: all logins through it then share one count of
    failures.
    """
    address: str | None = BaseThrottle().get_ident(Request(request))
    return _address(address) or _address(request.META.get("REMOTE_ADDR"))


def _address(address: str | None) -> str | None:
    """Return the address in the form that a database column takes, or None when it is not one."""
    try:
        return str(ip_address(_without_port(address or "").partition("%")[0]))
    except ValueError:
        return None


def _without_port(address: str) -> str:
    """Remove the port that some proxies add, and the brackets that they then put around an IPv6 address."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address
