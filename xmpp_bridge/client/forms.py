"""Data forms (XEP-0004), limited to the part that commands and push options use: fields with one value each."""

from collections.abc import Mapping
from xml.etree.ElementTree import Element

from xmpp_bridge.client.elements import FORMS, element, text_at

FORM_TYPE = "FORM_TYPE"


def submitted(fields: Mapping[str, str], form_type: str = "") -> Element:
    """Return a filled form."""
    values = {FORM_TYPE: form_type, **fields} if form_type else fields
    return element("x", FORMS, {"type": "submit"}, *(_field(name, value) for name, value in values.items()))


def values_of(form: Element | None) -> dict[str, str]:
    """Return the fields of a form by name. A field without a value is empty."""
    fields = [] if form is None else form.findall(f"{{{FORMS}}}field")
    return {field.get("var", ""): text_at(field, f"{{{FORMS}}}value") for field in fields}


def _field(name: str, value: str) -> Element:
    return element("field", FORMS, {"var": name}, *([element("value", FORMS, text=value)] if value else []))
