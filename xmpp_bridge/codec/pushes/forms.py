"""Data forms (XEP-0004): fields with one value each, which is all that these protocols use."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from xmpp_bridge.codec.elements import children, write
from xmpp_bridge.codec.names import DATA_FORM

FORM_TYPE = "FORM_TYPE"


@dataclass(frozen=True, slots=True)
class FormField:
    """One field of a form that we send."""

    name: str
    label: str
    type: str = "text-single"
    is_required: bool = False
    options: tuple[str, ...] = ()


def read_forms(parent: Element) -> list[tuple[str, dict[str, str]]]:
    """Return type and values of each form; a field without a value has an empty one. Nothing is taken from a value, not
    even the space around it: a token that has some is wrong.
    """
    return [(form.get("type", ""), _values(form)) for form in children(parent, DATA_FORM, "x")]


def _values(form: Element) -> dict[str, str]:
    fields = children(form, DATA_FORM, "field")
    return {field.get("var", ""): field.findtext(f"{{{DATA_FORM}}}value", "") for field in fields}


def write_form(title: str, instructions: str, fields: Iterable[FormField]) -> str:
    """Return a form to be filled in."""
    inside = [write("title", text=title), write("instructions", text=instructions), *map(_write_field, fields)]
    return write("x", *inside, xmlns=DATA_FORM, type="form")


def _write_field(field: FormField) -> str:
    required = [write("required")] if field.is_required else []
    options = [write("option", write("value", text=option), label=option) for option in field.options]
    return write("field", *required, *options, var=field.name, type=field.type, label=field.label)


def write_result(values: Mapping[str, str]) -> str:
    """Return a form that tells values."""
    fields = [write("field", write("value", text=value), var=name) for name, value in values.items()]
    return write("x", *fields, xmlns=DATA_FORM, type="result")
