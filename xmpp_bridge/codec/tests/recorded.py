"""Recorded stanzas and streams of `tests/vectors/xmpp/`, and the manifest with their expected content."""

import json
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from xmpp_bridge.codec.elements import parse

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
