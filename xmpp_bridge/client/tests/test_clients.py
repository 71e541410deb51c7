"""The reference clients: registration of an app, notifications, and the duties of a user's server."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from xml.etree.ElementTree import Element, fromstring

import pytest

from notifications.messages import Grade
from xmpp_bridge.client import notifying, registering
from xmpp_bridge.client.elements import (
    COMMANDS,
    FORMS,
    PUBSUB,
    PUSH2,
    SCE_ENCRYPTED,
    TIGASE_ENCRYPTED,
    Refused,
    element,
    error,
    reply_to,
    submitted,
    values_of,
)
from xmpp_bridge.client.notifying import Notification
from xmpp_bridge.client.registering import Cancelled, Device, FormAsked, Platform, Registered, Unregistered
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
FOLDER = Path(__file__).parents[3] / "tests" / "vectors" / "xmpp"
DEVICE = Device(Platform.FCM, "token", "device-1", app="messenger")


def answer(status: str, *children: Element, node: str = "register-push-fcm", session: str = "") -> Element:
    attributes = {"node": node, "status": status, "sessionid": session}
    return element("iq", "", {"type": "result"}, element("command", COMMANDS, attributes, *children))


def test_the_command_is_that_of_a_recorded_client() -> None:
    recorded = fromstring((FOLDER / "prosody13-adhoc-register-set.xml").read_text())[0]  # noqa: S314 - our own file
    values = values_of(recorded.find(f"{{{FORMS}}}x"))
    device = Device(Platform.FCM, values.pop("token"), values.pop("device-id", ""))
    command = registering.register(SERVICE, device, "1")[0]
    assert not values
    assert (command.tag, command.attrib) == (recorded.tag, recorded.attrib)
    assert sorted(map(str, shape(command)[3])) == sorted(map(str, shape(recorded)[3]))


@pytest.mark.parametrize(
    ("stanza", "shown"),
    [
        (
            answer("completed", submitted({"jid": SERVICE, "client": "c", "node": "n", "secret": "s"})),
            Registered(SERVICE, "c", "n", "s"),
        ),
        (answer("completed", node="unregister-push-fcm"), Unregistered()),
        (
            answer("executing", submitted({"token": "", "device-id": ""}), session="7"),
            FormAsked(("token", "device-id"), "7"),
        ),
        (answer("canceled"), Cancelled()),
        (element("iq", "", {"type": "error"}, error("auth", "forbidden")), Refused("auth", "forbidden")),
        (element("iq", "", {"type": "result"}), Refused("", "", "no command in the answer")),
    ],
)
def test_reads_every_answer(stanza: Element, shown: registering.Answer) -> None:
    assert registering.read_answer(stanza) == shown


def test_shows_no_token_and_no_secret() -> None:
    assert "token" not in repr(DEVICE)
    assert "device-1" not in repr(DEVICE)
    assert repr(Registered(SERVICE, "c", "n", "s")) == f"Registered(service='{SERVICE}')"


# Notifications, compared tree by tree with those of real servers and the draft's double -------------------------------
JWT = f"{{{PUSH2}}}jwt"


def recorded(name: str) -> Element:
    """Return the only child of a recorded stanza."""
    [payload] = fromstring((FOLDER / name).read_text())  # noqa: S314 - recorded by ourselves
    return payload


def shape(node: Element) -> object:
    """Return a tree without the parts that differ between servers: types and empty fields of forms, JSON web tokens."""
    attributes = {k: v for k, v in node.attrib.items() if not (node.tag.startswith("{jabber:x:data}") and k == "type")}
    children = [shape(child) for child in node if child.tag != JWT and (child.get("var") is None or len(child))]
    return node.tag, attributes, (node.text or "").strip(), children


def encrypted(payload: Element, namespace: str) -> Notification:
    found = payload.find(f".//{{{namespace}}}encrypted")
    assert found is not None
    grade = Grade.VOIP if found.get("type") == "voip" else Grade.NORMAL
    return Notification(grade, ciphertext=found.text or "", iv=found.get("iv", ""))


def named(payload: Element) -> str:
    return payload.findtext(f"{{{PUSH2}}}client", "")


def mod_push2(payload: Element, grade: Grade) -> Element:
    ciphertext = payload.findtext(f".//{{{SCE_ENCRYPTED}}}payload", "")
    return notifying.mod_push2(named(payload), Notification(grade, ciphertext))


def summary(payload: Element, grade: Grade) -> Element:
    publish = payload.find(f"{{{PUBSUB}}}publish")
    assert publish is not None
    return notifying.xep0357(publish.get("node", ""), "s3c-r1", Notification(grade))


def draft(payload: Element) -> Element:
    return notifying.draft(named(payload), encrypted(payload, PUSH2))


def tigase(payload: Element) -> Element:
    return notifying.xep0357("node-E", "s3c-e", encrypted(payload, TIGASE_ENCRYPTED))


@pytest.mark.requirement("X5")
@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("double-push2-draft-encrypted-chat", draft),
        ("double-push2-draft-encrypted-voip", draft),
        ("double-push2-draft-notify-only", lambda payload: notifying.draft(named(payload), Notification())),
        ("prosody13-push2-sce-rfc8291-chat", lambda payload: mod_push2(payload, Grade.NORMAL)),
        ("prosody13-push2-sce-rfc8291-voip", lambda payload: mod_push2(payload, Grade.VOIP)),
        ("prosody012-xep0357-publish-chat", lambda payload: summary(payload, Grade.NORMAL)),
        ("prosody012-xep0357-publish-no-body", lambda payload: summary(payload, Grade.LOW)),
        ("prosody13-xep0357-publish-encrypted-chat", tigase),
        ("prosody13-xep0357-publish-encrypted-voip", tigase),
    ],
)
def test_writes_notifications_as_the_servers_and_the_draft_have_them(
    name: str, write: Callable[[Element], Element]
) -> None:
    payload = recorded(f"{name}.xml")
    assert shape(write(payload)) == shape(payload)


def test_writes_a_forwarded_stanza_as_the_draft_has_it() -> None:
    [*_, message] = recorded("double-push2-draft-forward.xml").find("{urn:xmpp:forward:0}forwarded") or []
    written = notifying.draft("client", Notification(forwarded=message))
    assert written.find("{urn:xmpp:forward:0}forwarded/{jabber:client}message") is message


def test_publishes_without_options_where_there_is_no_secret() -> None:
    assert [child.tag for child in notifying.xep0357("node", "", Notification())] == [element("publish", PUBSUB).tag]


# Duties of a user's server: which stanzas it verifies, which notifications it repeats, when it forgets a route --------
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
