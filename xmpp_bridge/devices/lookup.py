"""Looking devices up for people: by what an app was given, and how many depend on which of the server's keys."""

from uuid import UUID

from django.db.models import Count

from xmpp_bridge.codec.client_strings import read_node, verify_client
from xmpp_bridge.identity import client_keys, keys_named
from xmpp_bridge.models import Device


def find_device(text: str) -> UUID | None:
    """Return the device that a client string or a node is of.

    A node proves nothing, so it counts only when there is such a device: any 16 bytes look like one.
    """
    found = verify_client(text, client_keys())
    if found:
        return found
    named = read_node(text)
    return named if named and Device.objects.filter(pk=named).exists() else None


def count_by_key() -> dict[bytes, int]:
    """Return how many devices know the server by which of its keys, by the names of these."""
    active = Device.objects.filter(state=Device.State.ACTIVE)
    counts: dict[bytes, int] = {}
    for name, count in active.values_list("key_name").annotate(Count("pk")).order_by():
        name = keys_named(None).name if name is None else name  # noqa: PLW2901
        counts[name] = counts.get(name, 0) + count
    return counts
