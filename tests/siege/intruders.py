"""Stanzas of a hostile server of XMPP users, by kind, as texts for a component's stream."""

import os
import uuid
from collections.abc import Iterator, Sequence
from itertools import cycle
from xml.etree.ElementTree import Element

from slixmpp.xmlstream import tostring

from tests.interop.xmpp.peers import SERVICE
from tests.interop.xmpp.service import APP, Neighbour, ciphertext, iv
from xmpp_bridge.client import Device, Dialect, Grade, Notification, Platform, Route, new_id, registering
from xmpp_bridge.client.user_server import UserServer

# Servers let a component send this much in one stanza, and our limit is higher.
LARGE_BYTES = 200_000
KINDS = (
    "pushes to clients of nobody",
    "pushes to one phone",
    "repeats a push",
    "requests a form and leaves",
    "registers a phone",
    "sends made-up names of elements",
    "sends elements 60 deep",
    "sends a namespace that our parser refuses",
    "sends 200 KB of text",
    "sends presence",
)


async def stanzas(kind: str, server: Neighbour, count: int) -> list[str]:
    """Return ``count`` stanzas of a kind. Kinds that need a phone of their own register it first."""
    domain = server.core.domain
    made: Iterator[Element | str]
    match kind:
        case "pushes to clients of nobody":
            made = (_push(domain, _made_up(dialect)) for dialect in cycle(Dialect))
        case "pushes to one phone":
            route = await server.route(_device())
            made = (_push(domain, route) for _ in cycle([0]))
        case "repeats a push":
            route = await server.route(_device(), Dialect.XEP0357)
            made = cycle([_push(domain, route)])
        case "requests a form and leaves":
            made = (_from(domain, registering.ask_for_form(SERVICE, Platform.FCM, new_id())) for _ in cycle([0]))
        case "registers a phone":
            made = (_from(domain, registering.register(SERVICE, _device(), new_id())) for _ in cycle([0]))
        case "sends made-up names of elements":
            made = (_message(domain, "".join(f"<{_name()}/>" for _ in range(900))) for _ in cycle([0]))
        case "sends elements 60 deep":
            made = (_message(domain, "<a>" * 60 + "</a>" * 60) for _ in cycle([0]))
        case "sends a namespace that our parser refuses":
            made = (_message(domain, "<x xmlns='a}b'/>") for _ in cycle([0]))
        case "sends 200 KB of text":
            made = cycle([_message(domain, f"<body>{'x' * LARGE_BYTES}</body>")])
        case _:
            made = (f'<presence from="{_user(domain)}" to="{SERVICE}"/>' for _ in cycle([0]))
    return [each if isinstance(each, str) else tostring(each) for _, each in zip(range(count), made, strict=False)]


def bytes_of(sent: Sequence[str]) -> int:
    return sum(len(each.encode()) for each in sent)


def _push(domain: str, route: Route) -> Element:
    core = UserServer(domain, new_id)
    core.enable(route)
    [stanza] = core.notify(route, Notification(Grade.NORMAL, ciphertext(), _iv(route)), 0.0).stanzas
    return stanza


def _iv(route: Route) -> str:
    return "" if route.dialect is Dialect.MOD_PUSH2 else iv()


def _made_up(dialect: Dialect) -> Route:
    return Route(SERVICE, dialect, uuid.uuid4().hex, uuid.uuid4().hex, uuid.uuid4().hex)


def _device() -> Device:
    return Device(Platform.FCM, uuid.uuid4().hex, uuid.uuid4().hex, APP)


def _from(domain: str, request: Element) -> Element:
    request.set("from", f"{_user(domain)}/app")
    return request


def _user(domain: str) -> str:
    return f"user-{uuid.uuid4().hex[:8]}@{domain}"


def _message(domain: str, inner: str) -> str:
    return f'<message from="{_user(domain)}" to="{SERVICE}" id="{new_id()}">{inner}</message>'


def _name() -> str:
    return f"n{os.urandom(5).hex()}"
