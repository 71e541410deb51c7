"""Data forms (XEP-0004), limited to the part that these protocols use: fields with one value each."""

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
    """Return the type and the values of each form. A field without a value has an empty one.

    Values are not stripped, because a token with space around it is invalid.
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


def write_values(values: Mapping[str, str], form_type: str) -> str:
    """Return a form with these values, of type `result` or `submit`."""
    fields = [write("field", write("value", text=value), var=name) for name, value in values.items()]
    return write("x", *fields, xmlns=DATA_FORM, type=form_type)
