"""Requests of an app to its own server: enable or disable pushes to a push service."""

from xml.etree.ElementTree import Element

from xmpp_bridge.client.elements import PUSH, element
from xmpp_bridge.client.forms import submitted
from xmpp_bridge.client.notifying import PUBLISH_OPTIONS


def enable_xep0357(service: str, node: str, secret: str) -> Element:
    """Return the request of XEP-0357, to the user's own account, that enables pushes to a node."""
    options = submitted({"secret": secret}, PUBLISH_OPTIONS)
    return element("enable", PUSH, {"jid": service, "node": node}, options)


def disable_xep0357(service: str, node: str = "") -> Element:
    """Return the request of XEP-0357 that disables pushes to one node, or to all nodes of a service."""
    return element("disable", PUSH, {"jid": service} | ({"node": node} if node else {}))
