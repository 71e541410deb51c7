"""Decoder of Push 2.0: the form of the draft, and that of Prosody's mod_push2, which share a namespace."""

from xml.etree.ElementTree import Element

from notifications.messages import Grade
from xmpp_bridge.codec.elements import child, children, text_of
from xmpp_bridge.codec.errors import MalformedStanza
from xmpp_bridge.codec.limits import MAX_CLIENT_CHARACTERS
from xmpp_bridge.codec.names import FORWARD, PUSH2, SCE_RFC8291
from xmpp_bridge.codec.pushes.payloads import forwarded_body, read_ciphertext
from xmpp_bridge.messages import Dialect, Format, Origin, Payload, PushNotification

_GRADES = {"high": Grade.HIGH, "normal": Grade.NORMAL, "low": Grade.LOW}


def read_message(stanza: Element, origin: Origin) -> PushNotification | None:
    """Return the push that a message carries, or None for a message without one.

    Raises MalformedStanza.
    """
    found = children(stanza, PUSH2, "notification")
    if not found:
        return None
    if len(found) > 1:
        raise MalformedStanza
    notification = found[0]
    return _read_mod_push2(notification, origin) if _is_mod_push2(notification) else _read_draft(notification, origin)


def _is_mod_push2(notification: Element) -> bool:
    own = [child(notification, PUSH2, name) for name in ("priority", "voip", "jwt")]
    return any(each is not None for each in (*own, child(notification, SCE_RFC8291, "encrypted")))


def _read_draft(notification: Element, origin: Origin) -> PushNotification:
    encrypted = child(notification, PUSH2, "encrypted")
    grade = Grade.HIGH if notification.get("priority") == "high" else Grade.NORMAL
    payload = None
    if encrypted is not None:
        grade = Grade.VOIP if encrypted.get("type") == "voip" else grade
        payload = Payload(Format.ENCRYPTED_JSON, read_ciphertext(encrypted), encrypted.get("iv", ""))
    return _notification(notification, origin, Dialect.DRAFT, grade, payload)


def _read_mod_push2(notification: Element, origin: Origin) -> PushNotification:
    grade = _GRADES.get(text_of(child(notification, PUSH2, "priority")), Grade.NORMAL)
    if child(notification, PUSH2, "voip") is not None:
        grade = Grade.VOIP
    encrypted = child(notification, SCE_RFC8291, "encrypted")
    payload = None
    if encrypted is not None:
        content = child(encrypted, SCE_RFC8291, "payload")
        if content is None:
            raise MalformedStanza
        payload = Payload(Format.RFC8291, read_ciphertext(content))
    return _notification(notification, origin, Dialect.MOD_PUSH2, grade, payload)


def _notification(
    notification: Element, origin: Origin, dialect: Dialect, grade: Grade, payload: Payload | None
) -> PushNotification:
    forwarded = child(notification, FORWARD, "forwarded")
    client = _client(notification)
    if payload or forwarded is None:
        return PushNotification(dialect, origin, grade, client=client, payload=payload)
    return PushNotification(dialect, origin, grade, is_forward=True, client=client, body=forwarded_body(forwarded))


def _client(notification: Element) -> str:
    clients = children(notification, PUSH2, "client")
    client = text_of(clients[0]) if len(clients) == 1 else ""
    if not 0 < len(client) <= MAX_CLIENT_CHARACTERS:
        raise MalformedStanza
    return client
