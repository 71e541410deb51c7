"""Decoder of XEP-0357: pushes published to a PubSub node, as Prosody and ejabberd write them."""

from xml.etree.ElementTree import Element

from notifications.messages import Grade
from xmpp_bridge.codec.elements import child, text_of
from xmpp_bridge.codec.errors import MalformedStanza
from xmpp_bridge.codec.limits import MAX_CLIENT_CHARACTERS
from xmpp_bridge.codec.names import PUBLISH_OPTIONS, PUBSUB, PUSH, PUSH_SUMMARY, TIGASE_ENCRYPT, TIGASE_PRIORITY
from xmpp_bridge.codec.pushes.forms import FORM_TYPE, read_forms
from xmpp_bridge.codec.pushes.payloads import read_ciphertext
from xmpp_bridge.messages import Dialect, Format, Origin, Payload, PushNotification


def read_publish(stanza: Element, pubsub: Element, origin: Origin) -> PushNotification | None:
    """Return the push that a PubSub request carries, or None when it publishes nothing.

    Raises MalformedStanza.
    """
    publish = child(pubsub, PUBSUB, "publish")
    if publish is None:
        return None
    notification = publish.find(f"{{{PUBSUB}}}item/{{{PUSH}}}notification")
    node, secret = publish.get("node", ""), _secret(stanza, pubsub)
    if notification is None or not 0 < len(node) <= MAX_CLIENT_CHARACTERS or len(secret) > MAX_CLIENT_CHARACTERS:
        raise MalformedStanza
    payload, is_voip = _payload(notification)
    body = _form(notification, PUSH_SUMMARY).get("last-message-body", "")
    grade = Grade.VOIP if is_voip else _grade(notification, has_content=bool(payload or body))
    return PushNotification(Dialect.XEP0357, origin, grade, node=node, secret=secret, payload=payload, body=body)


def _payload(notification: Element) -> tuple[Payload | None, bool]:
    encrypted = child(notification, TIGASE_ENCRYPT, "encrypted")
    if encrypted is None:
        return None, False
    payload = Payload(Format.TIGASE, read_ciphertext(encrypted), encrypted.get("iv", ""))
    return payload, encrypted.get("type") == "voip"


def _grade(notification: Element, *, has_content: bool) -> Grade:
    """Return normal for a push with content or priority, and otherwise low. Prosody marks every body `high`."""
    is_prior = text_of(child(notification, TIGASE_PRIORITY, "priority")) == "high"
    return Grade.NORMAL if has_content or is_prior else Grade.LOW


def _secret(stanza: Element, pubsub: Element) -> str:
    """Return the secret. Its options stand inside `pubsub` on the wire, and beside it in the XEP's examples."""
    for parent in (pubsub, stanza):
        options = child(parent, PUBSUB, "publish-options")
        if options is not None:
            return _form(options, PUBLISH_OPTIONS).get("secret", "")
    return ""


def _form(parent: Element, form_type: str) -> dict[str, str]:
    forms = [{name: value.strip() for name, value in values.items()} for _, values in read_forms(parent)]
    return next((values for values in forms if values.get(FORM_TYPE) == form_type), {})
