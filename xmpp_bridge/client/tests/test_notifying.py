"""Notifications of the reference clients, compared tree by tree with those of real servers and the draft's double."""

from pathlib import Path
from xml.etree.ElementTree import Element, fromstring

import pytest

from notifications.messages import Grade
from xmpp_bridge.client import notifying
from xmpp_bridge.client.elements import PUBSUB, PUSH2, SCE_ENCRYPTED, TIGASE_ENCRYPTED, element
from xmpp_bridge.client.notifying import Notification

FOLDER = Path(__file__).parents[3] / "tests" / "vectors" / "xmpp"
CLIENT = "bmVvdmdlbmVsIHB5dnJhZyBxbmduIHRicmYgdXJlcg=="
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


@pytest.mark.parametrize("name", ["double-push2-draft-encrypted-chat.xml", "double-push2-draft-encrypted-voip.xml"])
def test_writes_encrypted_notifications_as_the_draft_has_them(name: str) -> None:
    payload = recorded(name)
    client = payload.findtext(f"{{{PUSH2}}}client", "")
    assert shape(notifying.draft(client, encrypted(payload, PUSH2))) == shape(payload)


def test_writes_a_notification_of_the_draft_without_anything_else() -> None:
    payload = recorded("double-push2-draft-notify-only.xml")
    assert shape(notifying.draft(payload.findtext(f"{{{PUSH2}}}client", ""), Notification())) == shape(payload)


def test_writes_a_forwarded_stanza_as_the_draft_has_it() -> None:
    payload = recorded("double-push2-draft-forward.xml")
    [*_, message] = payload.find("{urn:xmpp:forward:0}forwarded") or []
    written = notifying.draft(CLIENT, Notification(forwarded=message))
    assert written.find("{urn:xmpp:forward:0}forwarded/{jabber:client}message") is message


@pytest.mark.requirement("X5")
@pytest.mark.parametrize("name", ["chat", "voip"])
def test_writes_notifications_as_mod_push2_does(name: str) -> None:
    payload = recorded(f"prosody13-push2-sce-rfc8291-{name}.xml")
    ciphertext = payload.findtext(f".//{{{SCE_ENCRYPTED}}}payload", "")
    notification = Notification(Grade.VOIP if name == "voip" else Grade.NORMAL, ciphertext)
    assert shape(notifying.mod_push2(payload.findtext(f"{{{PUSH2}}}client", ""), notification)) == shape(payload)


@pytest.mark.parametrize(
    ("name", "grade"),
    [("prosody012-xep0357-publish-chat.xml", Grade.NORMAL), ("prosody012-xep0357-publish-no-body.xml", Grade.LOW)],
)
def test_writes_summaries_as_mod_cloud_notify_does(name: str, grade: Grade) -> None:
    payload = recorded(name)
    node = payload.find(f"{{{PUBSUB}}}publish")
    assert node is not None
    assert shape(notifying.xep0357(node.get("node", ""), "s3c-r1", Notification(grade))) == shape(payload)


@pytest.mark.parametrize("name", ["chat", "voip"])
def test_writes_encrypted_notifications_as_tigase_has_them(name: str) -> None:
    payload = recorded(f"prosody13-xep0357-publish-encrypted-{name}.xml")
    written = notifying.xep0357("node-E", "s3c-e", encrypted(payload, TIGASE_ENCRYPTED))
    assert shape(written) == shape(payload)


def test_publishes_without_options_where_there_is_no_secret() -> None:
    assert [child.tag for child in notifying.xep0357("node", "", Notification())] == [element("publish", PUBSUB).tag]
