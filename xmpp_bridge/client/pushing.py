"""Requests of an app to its own server: enable or disable pushes to a push service."""

from xml.etree.ElementTree import Element

from xmpp_bridge.client.elements import PUSH, PUSH2, element
from xmpp_bridge.client.forms import submitted
from xmpp_bridge.client.notifying import PUBLISH_OPTIONS

MATCH_ALL = "urn:xmpp:push2:match:all"
MATCH_IMPORTANT = "urn:xmpp:push2:match:important"
NOTIFY_ONLY = "urn:xmpp:push2:send:notify-only"


def enable_xep0357(service: str, node: str, secret: str) -> Element:
    """Return the request of XEP-0357, to the user's own account, that enables pushes to a node."""
    options = submitted({"secret": secret}, PUBLISH_OPTIONS)
    return element("enable", PUSH, {"jid": service, "node": node}, options)


def disable_xep0357(service: str, node: str = "") -> Element:
    """Return the request of XEP-0357 that disables pushes to one node, or to all nodes of a service."""
    return element("disable", PUSH, {"jid": service} | ({"node": node} if node else {}))


def enable_draft(
    service: str, client: str, *, match: str = MATCH_ALL, send: str = NOTIFY_ONLY, limit: int = 0
) -> Element:
    """Return the request of Push 2.0 as its draft specifies it: `<send/>` stands beside `<match/>`."""
    parts = [
        element("service", PUSH2, text=service),
        element("client", PUSH2, text=client),
        element("match", PUSH2, {"profile": match}),
        element("send", PUSH2, {"profile": send}),
    ]
    if limit:
        parts.append(element("limit", PUSH2, text=str(limit)))
    return element("enable", PUSH2, {}, *parts)


def enable_mod_push2(service: str, client: str, *, match: str = MATCH_ALL, send: Element | None = None) -> Element:
    """Return the request of Push 2.0 as mod_push2 expects it: `<send/>` stands inside `<match/>`.

    The namespace of `<send/>` is its profile.
    """
    inner = element("send", NOTIFY_ONLY) if send is None else send
    parts = [
        element("service", PUSH2, text=service),
        element("client", PUSH2, text=client),
        element("match", PUSH2, {"profile": match}, inner),
    ]
    return element("enable", PUSH2, {}, *parts)
