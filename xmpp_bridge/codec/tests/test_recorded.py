"""Decoding of recorded stanzas of real servers, compared with the manifest that was written at the recording."""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import ECDH, SECP256R1, EllipticCurvePublicKey, derive_private_key
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from notifications.messages import Grade
from xmpp_bridge.codec.answers import write_error
from xmpp_bridge.codec.elements import NS, parse
from xmpp_bridge.codec.stanzas import decode
from xmpp_bridge.messages import (
    Command,
    Dialect,
    Format,
    Ignored,
    Origin,
    PushNotification,
    Query,
    StanzaError,
)

FOLDER = Path(__file__).parents[3] / "tests" / "vectors" / "xmpp"
MANIFEST: list[dict[str, Any]] = json.loads((FOLDER / "manifest.json").read_text(encoding="utf-8"))
STANZAS = [entry for entry in MANIFEST if entry["file"].endswith(".xml")]
STREAMS = [entry for entry in MANIFEST if entry["file"].endswith(".txt")]


def stanza_bytes(name: str) -> bytes:
    return (FOLDER / name).read_bytes().strip()


def stanza(name: str) -> Element:
    return parse(stanza_bytes(name))


def transcript(name: str) -> list[tuple[str, str]]:
    """Return the pieces of a recorded stream in order: the side (C or S), and the data that it sent."""
    batches: list[tuple[str, str]] = []
    for line in (FOLDER / name).read_text(encoding="utf-8").splitlines():
        if line[:3] in {"C: ", "S: "}:
            batches.append((line[0], line[3:]))
        elif line.strip():
            who, shown = batches.pop()
            batches.append((who, f"{shown}\n{line}"))
    return batches


def same_tree(one: Element, other: Element) -> bool:
    """Compare trees by names, attributes and texts. The order of attributes and a server's `xml:lang` do not count."""
    lang = "{http://www.w3.org/XML/1998/namespace}lang"
    mine, theirs = ({k: v for k, v in each.attrib.items() if k != lang} for each in (one, other))
    return (
        (one.tag, mine, (one.text or "").strip()) == (other.tag, theirs, (other.text or "").strip())
        and len(one) == len(other)
        and all(same_tree(mine, theirs) for mine, theirs in zip(one, other, strict=True))
    )


DIALECTS = {
    "push2 (draft)": Dialect.DRAFT,
    "push2 (mod_push2)": Dialect.MOD_PUSH2,
    "XEP-0357": Dialect.XEP0357,
}
FORMATS = {
    "tigase encrypted": Format.TIGASE,
    "encrypted-json": Format.ENCRYPTED_JSON,
    "sce+rfc8291": Format.RFC8291,
}
PUSHES = [entry for entry in STANZAS if entry["dialect"] in DIALECTS]
OTHERS = [entry for entry in STANZAS if entry["dialect"] not in DIALECTS]
SERVICE = "push.montague.test"


def named(entry: dict[str, Any]) -> str:
    return entry["file"].removesuffix(".xml")


def push(entry: dict[str, Any]) -> PushNotification:
    shown = decode(stanza(entry["file"]))
    assert isinstance(shown, PushNotification)
    return shown


def expected_grade(entry: dict[str, Any]) -> Grade:
    """Return the grade by the table of docs/xmpp.md: in XEP-0357, Prosody marks every message with a body `high`."""
    if entry["voip"]:
        return Grade.VOIP
    if entry["dialect"] == "XEP-0357":
        has_body = bool((entry.get("summary") or {}).get("last-message-body"))
        return Grade.NORMAL if has_body or entry["priority"] == "high" or entry.get("payload") else Grade.LOW
    return {"high": Grade.HIGH, "low": Grade.LOW}.get(entry["priority"] or "", Grade.NORMAL)


@pytest.mark.requirement("X5")
def test_the_corpus_is_whole_and_has_a_registration_and_a_query() -> None:
    assert (len(PUSHES), len(OTHERS)) == (25, 5)
    command, query = (decode(stanza(f"prosody13-{name}.xml")) for name in ("adhoc-register-set", "disco-info-get"))
    assert isinstance(command, Command)
    fields = {"token": "tok", "device-id": "dev"}
    assert (command.node, command.action, command.fields) == ("register-push-fcm", "execute", fields)
    assert "tok" not in repr(command)
    assert isinstance(query, Query)
    assert (query.namespace, query.node) == (NS.DISCO_INFO, "")


@pytest.mark.requirement("XB5", "X5")
@pytest.mark.parametrize("entry", PUSHES, ids=named)
def test_a_recorded_push_is_decoded_as_the_manifest_says(entry: dict[str, Any]) -> None:
    shown = push(entry)
    payload = entry.get("payload") or {}
    assert shown.dialect is DIALECTS[entry["dialect"]]
    assert shown.origin == Origin(entry["stanza"], entry["id"], entry["from"], entry["to"])
    assert (shown.client, shown.node) == (entry.get("client", ""), entry.get("node", ""))
    assert shown.secret == (entry.get("publish_options") or {}).get("secret", "")
    assert shown.grade is expected_grade(entry)
    assert shown.is_forward is (payload.get("kind") == "forward")
    assert (shown.payload.format if shown.payload else None) == FORMATS.get(payload.get("kind", ""))
    assert shown.body == ((entry.get("summary") or {}).get("last-message-body") or _forwarded(entry))
    hidden = [shown.client, shown.secret, shown.body]
    hidden += [shown.payload.text, shown.payload.iv] if shown.payload else []
    assert [each for each in hidden if each and each in repr(shown)] == []


def _forwarded(entry: dict[str, Any]) -> str:
    return (
        "Yet I should kill thee with much cherishing." if (entry.get("payload") or {}).get("kind") == "forward" else ""
    )


@pytest.mark.requirement("XB7", "X7")
@pytest.mark.parametrize("entry", [e for e in PUSHES if "plaintext" in (e.get("payload") or {})], ids=named)
def test_a_recorded_ciphertext_comes_through_bit_by_bit_and_opens(entry: dict[str, Any]) -> None:
    payload = push(entry).payload
    assert payload is not None
    elements = stanza(entry["file"]).iter()
    assert any(payload.text in (each.text, *each.attrib.values()) for each in elements)
    keys = entry["payload"]
    assert payload.iv == keys.get("iv_b64", "")
    opened = (
        _open_rfc8291(b64decode(payload.text), keys) if payload.format is Format.RFC8291 else _open_gcm(payload, keys)
    )
    assert opened.decode() == keys["plaintext"]


def _open_gcm(payload, keys) -> bytes:
    key, iv, sealed = bytes.fromhex(keys["key_hex"]), b64decode(payload.iv), b64decode(payload.text)
    if keys["tag_valid"]:
        return AESGCM(key).decrypt(iv, sealed, None)
    assert sealed[-16:] == bytes(16)  # Prosody 0.12 writes zeros in place of the tag
    counter = Cipher(algorithms.AES(key), modes.CTR(iv + (2).to_bytes(4))).decryptor()
    return counter.update(sealed[:-16]) + counter.finalize()


def _open_rfc8291(body: bytes, keys) -> bytes:
    salt, sender, sealed = body[:16], body[21:86], body[86:]
    own = derive_private_key(int(keys["ua_private_scalar_hex"], 16), SECP256R1())
    shared = own.exchange(ECDH(), EllipticCurvePublicKey.from_encoded_point(SECP256R1(), sender))
    public = own.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    info = b"WebPush: info\0" + public + sender
    secret = HKDF(hashes.SHA256(), 32, b64decode(keys["auth_secret_b64"]), info).derive(shared)
    key = HKDF(hashes.SHA256(), 16, salt, b"Content-Encoding: aes128gcm\0").derive(secret)
    nonce = HKDF(hashes.SHA256(), 12, salt, b"Content-Encoding: nonce\0").derive(secret)
    return AESGCM(key).decrypt(nonce, sealed, None).rstrip(b"\0").removesuffix(b"\2")


@pytest.mark.requirement("XB13", "X13")
@pytest.mark.parametrize("name", ["gone", "wait", "unknown"])
def test_an_error_is_never_answered_and_ours_look_as_they_were_recorded(name: str) -> None:
    recorded = stanza(f"double-push2-reply-{name}-as-seen-by-user-server.xml")
    assert decode(recorded) == Ignored("error")
    [entry] = [each for each in STANZAS if f"reply-{name}-" in each["file"]]
    error = StanzaError(
        entry["error"]["type"], entry["error"]["condition"], "", entry["error"].get("disabled_client", "")
    )
    origin = Origin("message", entry["id"], entry["to"], entry["from"])
    assert same_tree(parse(write_error(origin, error, by=SERVICE)), recorded)
