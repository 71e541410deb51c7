"""Notifications of the reference clients, compared tree by tree with those of real servers and the draft's double."""

from collections.abc import Callable
from pathlib import Path
from xml.etree.ElementTree import Element, fromstring

import pytest

from notifications.messages import Grade
from xmpp_bridge.client import notifying
from xmpp_bridge.client.elements import PUBSUB, PUSH2, SCE_ENCRYPTED, TIGASE_ENCRYPTED, element
from xmpp_bridge.client.notifying import Notification

FOLDER = Path(__file__).parents[3] / "tests" / "vectors" / "xmpp"
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
