"""`manage.py reference PAGE`: print a page of docs/ that is made from the code, such as that of all settings."""

import ast
from collections.abc import Iterator
from functools import cache
from itertools import groupby, pairwise
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from pushserver import metrics
from pushserver.config.environment import Setting
from pushserver.config.role import PROCESSES
from pushserver.console.gorush import advice

HEAD = """\
# Settings

For operators: each environment variable of the server. Set those of [the README](../README.md#run-it-in-production)
first. This page is made from the code (`manage.py reference settings`).

A *secret* can also be in a file, whose path is the value of `NAME_FILE`. Only the processes of `compose.yaml` that
stand in brackets need it. An empty variable, and an empty file, count as unset. What is not here is fixed, as no two
servers need it differently.

Limits are two token buckets, `count/seconds,count/seconds`: the count at once, filled again over the seconds; \
the first for bursts, the second for the long run.
"""


class Command(BaseCommand):
    help = "Print a page of the documentation that is made from the code."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("page", choices=PAGES)

    def handle(self, *_args: Any, page: str, **_options: Any) -> None:
        self.stdout.write(PAGES[page](), ending="")


def settings_page() -> str:
    """Return the page of the settings, made of their table, in Markdown."""
    groups = groupby(settings.ENVIRONMENT.table, key=lambda setting: setting.group)
    return "\n".join([HEAD, *(line for title, own in groups for line in _section(title, own))])


def _section(title: str, own: Iterator[Setting]) -> Iterator[str]:
    yield from (f"## {title}", "", "| setting | value; default | meaning |", "| --- | --- | --- |")
    for setting in own:
        yield f"| `{setting.name}` | {_value(setting)}; {setting.default} | {meanings()[setting.name]} |"
    yield ""


def _value(setting: Setting) -> str:
    if not setting.used_by:
        return setting.looks
    own = [name for name in PROCESSES if name in setting.used_by]
    users = "all" if own == [*PROCESSES] else ", ".join(own)
    return f"secret ({users}): {setting.looks}".removesuffix(": text")


@cache
def meanings() -> dict[str, str]:
    """Return the text below each row of the table, by the name of the setting."""
    source = (settings.BASE_DIR / "pushserver/settings.py").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for row, text in pairwise(ast.parse(source).body):
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            calls = [node for node in ast.walk(row) if isinstance(node, ast.Call) and ast.unparse(node.func) == "env"]
            found |= {ast.literal_eval(call.args[0]): " ".join(str(text.value.value).split()) for call in calls}
    return found


PAGES = {"settings": settings_page, "metrics": metrics.page, "error-rules": advice.page}
