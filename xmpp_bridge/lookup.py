"""Finding a device by what its app was given, for people who are told no more than that."""

from uuid import UUID

from xmpp_bridge.codec.client_strings import read_node, verify_client
from xmpp_bridge.identity import client_keys
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
