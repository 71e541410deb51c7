"""Stanzas of a hostile server of XMPP users, by kind, as texts for a component's stream."""

import os
import random
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import count, islice, repeat
from xml.etree.ElementTree import Element

from slixmpp.xmlstream import tostring

from notifications.messages import Grade
from tests.interop.xmpp.peers import SERVICE
from tests.interop.xmpp.service import APP, Neighbour, ciphertext, iv
from xmpp_bridge.client import registering
from xmpp_bridge.client.connections import new_id
from xmpp_bridge.client.notifying import Notification
from xmpp_bridge.client.registering import Device, Platform
from xmpp_bridge.client.user_server import Route, UserServer
from xmpp_bridge.messages import Dialect

# Servers let a component send this much in one stanza, and our limit is higher.
LARGE_BYTES = 200_000
Made = Iterable[Element | str]


async def _pushes_to_one_phone(server: Neighbour) -> Made:
    route = await server.route(_device())
    return (_push(server.core.domain, route) for _ in count())


async def _repeats_of_a_push(server: Neighbour) -> Made:
    route = await server.route(_device(), Dialect.XEP0357)
    return repeat(_push(server.core.domain, route))


def _each(make: Callable[[str], Element | str]) -> Callable[[Neighbour], Awaitable[Made]]:
    """Return a kind whose stanzas are all made anew, from the domain of their server."""

    async def made(server: Neighbour) -> Made:
        return (make(server.core.domain) for _ in count())

    return made


KINDS: Mapping[str, Callable[[Neighbour], Awaitable[Made]]] = {
    "pushes to clients of nobody": _each(lambda domain: _push(domain, _made_up(random.choice(list(Dialect))))),
    "pushes to one phone": _pushes_to_one_phone,
    "repeats a push": _repeats_of_a_push,
    "requests a form and leaves": _each(
        lambda domain: _from(domain, registering.ask_for_form(SERVICE, Platform.FCM, new_id()))
    ),
    "registers a phone": _each(lambda domain: _from(domain, registering.register(SERVICE, _device(), new_id()))),
    "sends made-up names of elements": _each(
        lambda domain: _message(domain, "".join(f"<n{os.urandom(5).hex()}/>" for _ in range(900)))
    ),
    "sends elements 60 deep": _each(lambda domain: _message(domain, "<a>" * 60 + "</a>" * 60)),
    "sends a namespace that our parser refuses": _each(lambda domain: _message(domain, "<x xmlns='a}b'/>")),
    "sends 200 KB of text": _each(lambda domain: _message(domain, f"<body>{'x' * LARGE_BYTES}</body>")),
    "sends presence": _each(lambda domain: f'<presence from="{_user(domain)}" to="{SERVICE}"/>'),
}


async def stanzas(kind: str, server: Neighbour, number: int) -> list[str]:
    """Return stanzas of a kind. Kinds that need a phone of their own register it first."""
    made = islice(await KINDS[kind](server), number)
    return [each if isinstance(each, str) else tostring(each) for each in made]


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
