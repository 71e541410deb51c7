"""Page of all settings: `manage.py settings_catalogue > docs/settings.md`. Pure.

A default and its bounds are those of the line of `pushserver/settings.py` that reads the variable. The meaning is that
of the catalogue.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pushserver.config.catalogue import GROUPS, LIMITS, Setting

SOURCE = Path(__file__).parents[1] / "settings.py"
HEAD = f"""\
# Settings

For operators: each environment variable of the server. Set those of [the README](../README.md#run-it-in-production)
first. This page is made from the code (`manage.py settings_catalogue`).

A *secret* can also be in a file, whose path is the value of `NAME_FILE`. An empty variable, and an empty file, count as
unset. What is not here is fixed, as no two servers need it differently. A setting of an older version is refused with
what to do instead. OpenSSL's `SSL_CERT_FILE` names your own authorities (PEM) for all links but that to PostgreSQL,
beside the system's and the public ones.

{LIMITS}
"""
# What a value looks like, by the method of `Environment` that reads it.
VALUES = {
    "choice": "word",
    "count": "number",
    "domain": "domain",
    "domains": "comma list of domains",
    "field_keys": "secret: comma list of 32 bytes in url-safe base64",
    "flag": "`0` or `1`",
    "headers": "secret: `name=value,name=value`, values as in a URL",
    "items": "comma list",
    "lake": "path or URL",
    "limits": "limits",
    "number": "number",
    "private_key": "secret: 64 hex digits",
    "private_keys": "secret: comma list of 64 hex digits",
    "redis_url": "secret",
    "secret": "secret",
    "targets": "secret: comma list",
    "text": "text",
    "urls": "comma list of URLs",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """Reading of one variable by the settings. ``default`` is None where it is no constant."""

    kind: str
    default: Any
    minimum: Any = None
    maximum: Any = None


def readings() -> dict[str, Reading]:
    """Return how `pushserver/settings.py` reads each variable, by name. The first line has its default."""
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _kind(node) in VALUES]
    calls.sort(key=lambda call: call.lineno, reverse=True)
    return {str(_constant(call.args[0])): _reading(call) for call in calls}


def _kind(call: ast.Call) -> str:
    """Return the method of `env` that is called, or nothing."""
    match call.func:
        case ast.Attribute(value=ast.Name(id="env"), attr=method):
            return method
    return ""


def _reading(call: ast.Call) -> Reading:
    kind = _kind(call)
    given = {word.arg: word.value for word in call.keywords}
    unset = ast.Constant(value=False if kind == "flag" else "")
    default = call.args[1] if len(call.args) > 1 else given.get("default", unset)
    return Reading(kind, *map(_constant, (default, given.get("minimum"), given.get("maximum"))))


def _constant(node: ast.expr | None) -> Any:
    return node.value if isinstance(node, ast.Constant) else None


def page() -> str:
    """Return the whole page in Markdown."""
    known = readings()
    return "\n".join([HEAD, *(line for title, own in GROUPS.items() for line in _section(title, own, known))])


def _section(title: str, own: tuple[Setting, ...], known: dict[str, Reading]) -> Iterator[str]:
    yield from (f"## {title}", "", "| setting | default | value | meaning |", "| --- | --- | --- | --- |")
    for setting in own:
        reading = known[setting.name]
        default, value = setting.default or _default(reading.default), setting.value or _value(reading)
        yield f"| `{setting.name}` | {default} | {value} | {setting.meaning} |"
    yield ""


def _default(constant: Any) -> str:
    if isinstance(constant, bool):
        return f"`{constant:d}`"
    if isinstance(constant, int | float):
        return f"`{constant:.12g}`"
    return f"`{constant}`" if constant else "none"


def _value(reading: Reading) -> str:
    if reading.minimum is None:
        return VALUES[reading.kind]
    return f"{reading.minimum:.12g} to {reading.maximum:.12g}"
