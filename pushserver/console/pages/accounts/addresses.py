"""Addresses of logins, by which people who guess passwords are locked out."""

from ipaddress import IPv6Address, ip_address, ip_network

from django.http import HttpRequest
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

# Prefix of the IPv6 network of one customer, who may use all addresses in it.
IPV6_PREFIX_BITS = 64


def client_network(request: HttpRequest) -> str | None:
    """Return the address under which failed logins are counted: for IPv6 the first address of its /64 network."""
    address = client_address(request)
    parsed = ip_address(address) if address else None
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return str(ip_network((parsed, IPV6_PREFIX_BITS), strict=False).network_address)


def client_address(request: HttpRequest) -> str | None:
    """Return the address of the client, as the API finds it. Behind our proxy only the proxy's own entry counts, never
    the entries that a client sent.

    Without a usable entry, return the address of the proxy. All logins through it then share one count of failures.
    """
    address: str | None = BaseThrottle().get_ident(Request(request))
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
