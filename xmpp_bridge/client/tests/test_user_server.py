"""Duties of a user's server: which stanzas it verifies, which notifications it repeats, when it forgets a route."""

from itertools import count
from xml.etree.ElementTree import Element

import pytest

from notifications.messages import Grade
from xmpp_bridge.client.elements import PUSH2, element, error, reply_to
from xmpp_bridge.client.notifying import Notification
from xmpp_bridge.client.user_server import (
    FIRST_PAUSE_SECONDS,
    MAX_ATTEMPTS,
    MEMORY_SECONDS,
    Disabled,
    Failed,
    Route,
    Stored,
    UserServer,
)
from xmpp_bridge.messages import Dialect

SERVICE = "push.montague.test"
DRAFT = Route(SERVICE, Dialect.DRAFT, client="client")
XEP0357 = Route(SERVICE, Dialect.XEP0357, node="node", secret="secret")


def server(*routes: Route) -> UserServer:
    numbers = count(1)
    made = UserServer("userserver.test", lambda: f"n-{next(numbers)}")
    for route in routes:
        made.enable(route)
    return made


def notify(core: UserServer, route: Route) -> Element:
    [stanza] = core.notify(route, Notification(Grade.NORMAL), 0.0).stanzas
    return stanza


def gone(client: str, *, sender: str = SERVICE, identifier: str = "other") -> Element:
    disabled = element("disabled", PUSH2, {}, element("client", PUSH2, text=client))
    attributes = {"type": "error", "id": identifier, "from": sender, "to": "userserver.test"}
    return element("message", "", attributes, error("cancel", "gone", disabled))


def wait(stanza: Element) -> Element:
    return reply_to(stanza, "error", error("wait", "resource-constraint"))


def test_sends_a_message_or_an_iq_by_the_dialect_along_enabled_routes() -> None:
    core = server(DRAFT, XEP0357)
    assert notify(core, DRAFT).attrib == {"id": "n-1", "from": "userserver.test", "to": SERVICE}
    assert notify(core, XEP0357).get("type") == "set"
    core.disable(DRAFT)
    assert core.notify(DRAFT, Notification(), 0.0).stanzas == ()


def test_reports_that_a_notification_is_stored_once() -> None:
    core = server(XEP0357)
    answer = reply_to(notify(core, XEP0357), "result")
    assert core.receive(answer, 0.0).events == (Stored("n-1"),)
    assert core.receive(answer, 0.0).events == ()


@pytest.mark.parametrize("identifier", ["n-1", "other"], ids=["in answer", "unasked"])
def test_forgets_a_route_that_its_service_declares_gone(identifier: str) -> None:
    core = server(DRAFT)
    notify(core, DRAFT)
    assert Disabled(DRAFT) in core.receive(gone("client", identifier=identifier), 0.0).events
    assert core.routes == ()


@pytest.mark.parametrize("stanza", [gone("client", sender="evil.test"), gone("another")], ids=["sender", "client"])
def test_keeps_a_route_that_somebody_else_declares_gone(stanza: Element) -> None:
    core = server(DRAFT)
    assert core.receive(stanza, 0.0).events == ()
    assert core.routes == (DRAFT,)


def test_repeats_a_notification_after_wait_with_growing_pauses_and_gives_up() -> None:
    core = server(DRAFT)
    stanza, now, pauses = notify(core, DRAFT), 0.0, []
    for _ in range(MAX_ATTEMPTS - 1):
        core.receive(wait(stanza), now)
        due = now
        while core.tick(due).stanzas != (stanza,):
            due += FIRST_PAUSE_SECONDS
        pauses.append(due - now)
        now = due
    assert pauses == [1, 2, 4, 8, 16]
    assert [type(event) for event in core.receive(wait(stanza), now).events] == [Failed]
    assert core.tick(now + 300).stanzas == ()


@pytest.mark.parametrize(("namespace", "shown"), [("", "cancel/item-not-found"), ("{jabber:client}", "/")])
def test_repeats_no_notification_after_a_permanent_error_or_one_in_another_namespace(namespace, shown) -> None:
    core = server(XEP0357)
    kind = "wait" if namespace else "cancel"
    answer = reply_to(notify(core, XEP0357), "error", error(kind, "item-not-found"))
    answer[0].tag = f"{namespace}error"
    [failed] = core.receive(answer, 0.0).events
    assert isinstance(failed, Failed)
    assert str(failed.refusal) == shown
    assert core.tick(1000.0).stanzas == ()


def test_forgets_a_notification_that_nobody_answers() -> None:
    core = server(DRAFT)
    stanza = notify(core, DRAFT)
    core.tick(MEMORY_SECONDS)
    assert core.receive(wait(stanza), MEMORY_SECONDS).events == ()


def test_answers_requests_and_nothing_else() -> None:
    core = server()
    request = element("iq", "", {"type": "get", "id": "1", "from": SERVICE, "to": "userserver.test"})
    [answer] = core.receive(request, 0.0).stanzas
    assert (answer.get("type"), answer.get("to"), answer.get("from")) == ("error", SERVICE, "userserver.test")
    assert core.receive(element("presence"), 0.0).stanzas == ()
    assert core.receive(element("message", "", {"type": "error"}), 0.0).stanzas == ()


def test_shows_no_secret_of_a_route() -> None:
    assert "client=" not in repr(DRAFT)
    assert "secret" not in repr(XEP0357)
