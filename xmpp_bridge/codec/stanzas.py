"""Decoder of one stanza: an XML tree to a `StanzaEvent`."""

import binascii
import re
from base64 import b64decode
from dataclasses import replace
from xml.etree.ElementTree import Element

from notifications.messages import Grade
from xmpp_bridge.codec.elements import FORM_TYPE, NS, MalformedStanza, child, children, local_name, text_of
from xmpp_bridge.messages import (
    Command,
    Dialect,
    Errors,
    Format,
    Ignored,
    IqAnswer,
    Origin,
    Payload,
    PushNotification,
    Query,
    Refused,
    StanzaError,
    StanzaEvent,
)

MAX_CLIENT_CHARACTERS = 1024
MAX_ID_CHARACTERS = 1024
IV_BYTES = 12
_GRADES = {"high": Grade.HIGH, "normal": Grade.NORMAL, "low": Grade.LOW}
_QUERIES = ((NS.DISCO_INFO, "query"), (NS.DISCO_ITEMS, "query"), (NS.PING, "ping"))
_CONDITION = f"{{{NS.STANZA_ERRORS}}}"
_SPACE = re.compile(r"[ \t\r\n]+")


def decode(stanza: Element, *, is_too_large: bool = False) -> StanzaEvent:
    """Decode a stanza. Every stanza becomes an event: one to be answered, or `Ignored` with its reason.

    Of one that ``is_too_large``, only the first tag was read. It is `Refused` if it is a request.
    """
    name, attributes = local_name(stanza), stanza.attrib
    if name not in {"message", "iq"}:
        return Ignored("presence" if name == "presence" else "unknown_stanza")
    if name == "message" and attributes.get("type") == "error":
        return Ignored("error")
    stanza_id, sender, service = (attributes.get(each, "") for each in ("id", "from", "to"))
    if not sender or not service or (not stanza_id and name == "iq") or len(stanza_id) > MAX_ID_CHARACTERS:
        return Ignored("unaddressed")  # without what an answer needs
    origin = Origin(name, stanza_id, sender, service)
    if is_too_large and (name == "message" or attributes.get("type") not in {"result", "error"}):
        return Refused(origin, Errors.BAD_REQUEST)
    try:
        return _decode_iq(stanza, origin) if name == "iq" else _read_message(stanza, origin) or Ignored("no_push")
    except MalformedStanza:
        return Refused(origin, Errors.BAD_REQUEST)


def _decode_iq(stanza: Element, origin: Origin) -> StanzaEvent:
    match stanza.get("type"):
        case "result":
            return IqAnswer(origin.id, origin.sender, is_error=False)
        case "error":
            return _decode_error(stanza, origin)
        case "get":
            return _decode_get(stanza, origin)
        case "set":
            return _decode_set(stanza, origin)
    raise MalformedStanza


def _decode_error(stanza: Element, origin: Origin) -> IqAnswer:
    error = next((each for each in stanza if local_name(each) == "error"), Element("error"))
    conditions = [each.tag.removeprefix(_CONDITION) for each in error if each.tag.startswith(_CONDITION)]
    condition = next((each for each in conditions if each != "text"), "")
    return IqAnswer(origin.id, origin.sender, is_error=True, condition=condition, by=error.get("by", ""))


def _decode_get(stanza: Element, origin: Origin) -> StanzaEvent:
    for namespace, name in _QUERIES:
        asked = child(stanza, namespace, name)
        if asked is not None:
            return Query(origin, namespace, asked.get("node", ""))
    return _unsupported(stanza, origin)


def _decode_set(stanza: Element, origin: Origin) -> StanzaEvent:
    command = child(stanza, NS.COMMANDS, "command")
    if command is not None:
        return _decode_command(command, origin)
    pubsub = child(stanza, NS.PUBSUB, "pubsub")
    push = _read_publish(stanza, pubsub, origin) if pubsub is not None else None
    return push or _unsupported(stanza, origin)


def _decode_command(command: Element, origin: Origin) -> StanzaEvent:
    node, action, session = (command.get(name, "") for name in ("node", "action", "sessionid"))
    if not node or len(session) > MAX_ID_CHARACTERS:
        raise MalformedStanza
    submitted = [values for form_type, values in read_forms(command) if form_type == "submit"]
    return Command(origin, node, action or "execute", session, submitted[0] if submitted else None)


def _unsupported(stanza: Element, origin: Origin) -> Refused:
    is_pubsub = any(each.tag.startswith(f"{{{NS.PUBSUB}") for each in stanza)
    return Refused(origin, StanzaError("cancel", "feature-not-implemented" if is_pubsub else "service-unavailable"))


# Push 2.0: the form of the draft, and that of Prosody's mod_push2, which share a namespace ----------------------------


def _read_message(stanza: Element, origin: Origin) -> PushNotification | None:
    """Return the push that a message carries, or None for a message without one.

    Raises MalformedStanza.
    """
    found = children(stanza, NS.PUSH2, "notification")
    if not found:
        return None
    if len(found) > 1:
        raise MalformedStanza
    [notification] = found
    clients = children(notification, NS.PUSH2, "client")
    client = text_of(clients[0]) if len(clients) == 1 else ""
    if not 0 < len(client) <= MAX_CLIENT_CHARACTERS:
        raise MalformedStanza
    dialect = Dialect.MOD_PUSH2 if _is_mod_push2(notification) else Dialect.DRAFT
    grade, payload = (_read_mod_push2 if dialect is Dialect.MOD_PUSH2 else _read_draft)(notification)
    push = PushNotification(dialect, origin, grade, client=client, payload=payload)
    forwarded = None if payload else child(notification, NS.FORWARD, "forwarded")
    if forwarded is None:
        return push
    # The message is in any namespace, because servers differ there.
    return replace(push, is_forward=True, body=text_of(forwarded.find("{*}message/{*}body")))


def _is_mod_push2(notification: Element) -> bool:
    own = [child(notification, NS.PUSH2, name) for name in ("priority", "voip", "jwt")]
    return any(each is not None for each in (*own, child(notification, NS.SCE_RFC8291, "encrypted")))


def _read_draft(notification: Element) -> tuple[Grade, Payload | None]:
    encrypted = child(notification, NS.PUSH2, "encrypted")
    grade = Grade.HIGH if notification.get("priority") == "high" else Grade.NORMAL
    if encrypted is None:
        return grade, None
    payload = Payload(Format.ENCRYPTED_JSON, _read_ciphertext(encrypted), encrypted.get("iv", ""))
    return Grade.VOIP if encrypted.get("type") == "voip" else grade, payload


def _read_mod_push2(notification: Element) -> tuple[Grade, Payload | None]:
    grade = _GRADES.get(text_of(child(notification, NS.PUSH2, "priority")), Grade.NORMAL)
    if child(notification, NS.PUSH2, "voip") is not None:
        grade = Grade.VOIP
    encrypted = child(notification, NS.SCE_RFC8291, "encrypted")
    if encrypted is None:
        return grade, None
    content = child(encrypted, NS.SCE_RFC8291, "payload")
    if content is None:
        raise MalformedStanza
    return grade, Payload(Format.RFC8291, _read_ciphertext(content))


# XEP-0357: pushes published to a PubSub node, as Prosody and ejabberd write them --------------------------------------


def _read_publish(stanza: Element, pubsub: Element, origin: Origin) -> PushNotification | None:
    """Return the push that a PubSub request carries, or None when it publishes nothing.

    Raises MalformedStanza.
    """
    publish = child(pubsub, NS.PUBSUB, "publish")
    if publish is None:
        return None
    notification = publish.find(f"{{{NS.PUBSUB}}}item/{{{NS.PUSH}}}notification")
    node, secret = publish.get("node", ""), _secret(stanza, pubsub)
    if notification is None or not 0 < len(node) <= MAX_CLIENT_CHARACTERS or len(secret) > MAX_CLIENT_CHARACTERS:
        raise MalformedStanza
    encrypted, payload, grade = child(notification, NS.TIGASE_ENCRYPT, "encrypted"), None, Grade.LOW
    if encrypted is not None:
        payload = Payload(Format.TIGASE, _read_ciphertext(encrypted), encrypted.get("iv", ""))
    body = _form(notification, NS.PUSH_SUMMARY).get("last-message-body", "")
    # Prosody marks every body with priority `high`.
    if payload or body or text_of(child(notification, NS.TIGASE_PRIORITY, "priority")) == "high":
        grade = Grade.NORMAL
    if encrypted is not None and encrypted.get("type") == "voip":
        grade = Grade.VOIP
    return PushNotification(Dialect.XEP0357, origin, grade, node=node, secret=secret, payload=payload, body=body)


def _secret(stanza: Element, pubsub: Element) -> str:
    """Return the secret. Its options stand inside `pubsub` on the wire, and beside it in the XEP's examples."""
    for parent in (pubsub, stanza):
        options = child(parent, NS.PUBSUB, "publish-options")
        if options is not None:
            return _form(options, NS.PUBLISH_OPTIONS).get("secret", "")
    return ""


def _form(parent: Element, form_type: str) -> dict[str, str]:
    forms = [{name: value.strip() for name, value in values.items()} for _, values in read_forms(parent)]
    return next((values for values in forms if values.get(FORM_TYPE) == form_type), {})


# Payloads and data forms (XEP-0004), of which these protocols use fields with one value each --------------------------


def _read_ciphertext(element: Element) -> str:
    """Return the base64 of a ciphertext unchanged, except for the space around it.

    Raises MalformedStanza when it is no base64, or its IV has a length other than IV_BYTES. Its authentication cannot
    be checked: only the device has the key, and Prosody 0.12 writes zeros in place of the tag.
    """
    text = text_of(element)
    if not text or _base64(text) is None:
        raise MalformedStanza
    iv = element.get("iv")
    if iv is not None and len(_base64(iv) or b"") != IV_BYTES:
        raise MalformedStanza
    return text


def _base64(text: str) -> bytes | None:
    try:
        return b64decode(_SPACE.sub("", text), validate=True)
    except (binascii.Error, ValueError):
        return None


def read_forms(parent: Element) -> list[tuple[str, dict[str, str]]]:
    """Return the type and the values of each form. A field without a value has an empty one.

    Values are not stripped, because a token with space around it is invalid.
    """
    value, forms = f"{{{NS.DATA_FORM}}}value", []
    for form in children(parent, NS.DATA_FORM, "x"):
        fields = children(form, NS.DATA_FORM, "field")
        forms.append((form.get("type", ""), {field.get("var", ""): field.findtext(value, "") for field in fields}))
    return forms
