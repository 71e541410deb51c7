"""Notifications as users' servers write them, in each of the three dialects. The caller supplies the ciphertexts."""

from dataclasses import dataclass
from xml.etree.ElementTree import Element

from notifications.messages import Grade
from xmpp_bridge.client.elements import (
    FORWARD,
    PUBLISH_OPTIONS,
    PUBSUB,
    PUSH,
    PUSH2,
    SCE_ENCRYPTED,
    TIGASE_ENCRYPTED,
    TIGASE_PRIORITY,
    element,
    submitted,
)

SUMMARY = "urn:xmpp:push:summary"


@dataclass(frozen=True, slots=True)
class Notification:
    """An event that a user's server notifies the user of.

    ``ciphertext`` and ``iv`` are base64. ``forwarded`` is the whole stanza, which only the draft can include.
    """

    grade: Grade = Grade.NORMAL
    ciphertext: str = ""
    iv: str = ""
    forwarded: Element | None = None


def draft(client: str, notification: Notification) -> Element:
    """Return the payload of a message: Push 2.0 as the draft specifies it."""
    parts = []
    if notification.ciphertext:
        parts.append(_encrypted(PUSH2, notification))
    if notification.forwarded is not None:
        parts.append(element("forwarded", FORWARD, {}, notification.forwarded))
    urgent = {"priority": "high"} if notification.grade in {Grade.VOIP, Grade.HIGH} else {}
    return element("notification", PUSH2, urgent, element("client", PUSH2, text=client), *parts)


def mod_push2(client: str, notification: Notification) -> Element:
    """Return the payload of a message: Push 2.0 as mod_push2 writes it, where only calls have high priority."""
    is_call = notification.grade is Grade.VOIP
    parts = [element("client", PUSH2, text=client)]
    parts.append(element("priority", PUSH2, text="high" if is_call else str(notification.grade)))
    if is_call:
        parts.append(element("voip", PUSH2))
    if notification.ciphertext:
        payload = element("payload", SCE_ENCRYPTED, text=notification.ciphertext)
        parts.append(element("encrypted", SCE_ENCRYPTED, {}, payload))
    return element("notification", PUSH2, {}, *parts)


def xep0357(node: str, secret: str, notification: Notification) -> Element:
    """Return the payload of an IQ: XEP-0357, as Prosody writes it."""
    item = element("item", PUBSUB, {}, element("notification", PUSH, {}, *_summary_or_encrypted(notification)))
    publish = element("publish", PUBSUB, {"node": node}, item)
    if not secret:
        return element("pubsub", PUBSUB, {}, publish)
    options = element("publish-options", PUBSUB, {}, submitted({"secret": secret}, PUBLISH_OPTIONS))
    return element("pubsub", PUBSUB, {}, publish, options)


def _summary_or_encrypted(notification: Notification) -> list[Element]:
    """Return the summary, or the ciphertext and its priority when the message was encrypted."""
    if notification.ciphertext:
        priority = element("priority", TIGASE_PRIORITY, text="high")
        return [_encrypted(TIGASE_ENCRYPTED, notification), priority]
    body = {} if notification.grade is Grade.LOW else {"last-message-body": "New Message!"}
    return [submitted({"message-count": "1", "last-message-sender": "", **body}, SUMMARY)]


def _encrypted(namespace: str, notification: Notification) -> Element:
    attributes = {"iv": notification.iv} if notification.iv else {}
    if notification.grade is Grade.VOIP:
        attributes["type"] = "voip"
    return element("encrypted", namespace, attributes, text=notification.ciphertext)
