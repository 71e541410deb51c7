"""Lookups for operators: a device by its credentials, and the number of devices that depend on each server key."""

from uuid import UUID

from django.db.models import Count

from xmpp_bridge.codec.client_strings import read_node, verify_client
from xmpp_bridge.identity import client_keys, keys_named
from xmpp_bridge.models import Device


def find_device(text: str) -> UUID | None:
    """Return the id of the device that a client string or a node names, or None.

    Any 16 bytes look like a node, so a node counts only if its device exists.
    """
    found = verify_client(text, client_keys())
    if found:
        return found
    named = read_node(text)
    return named if named and Device.objects.filter(pk=named).exists() else None


def count_by_key() -> dict[bytes, int]:
    """Return the number of active devices by the name of the keys that made their credentials."""
    active = Device.objects.filter(state=Device.State.ACTIVE)
    counts: dict[bytes, int] = {}
    for name, count in active.values_list("key_name").annotate(Count("pk")).order_by():
        name = keys_named(None).name if name is None else name  # noqa: PLW2901
        counts[name] = counts.get(name, 0) + count
    return counts
