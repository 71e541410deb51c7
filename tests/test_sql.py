"""Rules for our SQL.

Only the app that owns a table writes it, and a module that reads another app's table imports its model. No text of a
message is put into a statement. Django's models say which tables there are.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from django.apps import apps
from django.db import models

ROOT = Path(__file__).parent.parent
OURS = (
    "kit",
    "registrations",
    "notifications",
    "waku_bridge",
    "xmpp_bridge",
    "spark_reports",
    "pushserver",
)
# Files that hold no SQL of a running server, or query PostgreSQL's own tables.
LEFT_OUT = frozenset({"tests", "migrations", "management"})
KEYWORD = re.compile(r"\b(?:SELECT\s|FROM\s|UPDATE\s+\w+\s+(?:AS\s+\w+\s+)?SET\b|INSERT INTO|DELETE FROM|WHERE\s)")
WRITES = r"(?:INSERT INTO|UPDATE|DELETE FROM|LOCK TABLE)\s+{}\b"
# Expressions that may stand in a statement: a constant of ours, a state of a model, or its table; and an array of
# `write_rows` whose names are constants.
CONSTANT = re.compile(
    r"_?[A-Z][A-Z_]*|(?:\w+\.)*[A-Z]\w*\.[A-Z_]+|table\([\w.]+\)"
    r"|(?:array_value|since|_of\w*)\('[^']+'(?:, '[^']+')*\)"
)

# Modules that put more than constants into a statement, and the reason for each.
PUT_TOGETHER = {
    "kit/batches/looking.py": "the queries of the steps, settings of the session, and the name of a step",
    "pushserver/console/models.py": "the name of a network",
    "kit/processes/leader.py": "its own statements",
    "kit/db/base.py": "the table, the index and the condition of a count",
    "kit/db/partitions.py": "names of tables and columns, and days",
    "waku_bridge/inbox/inbox.py": "the conditions of the part of a statement that ends envelopes",
    "xmpp_bridge/handler.py": "settings of the session",
    "notifications/retention.py": "names of tables and columns",
    "notifications/queues/ending.py": "the conditions of a statement that ends notifications",
    "registrations/retention.py": "the names of tables that are walked",
    "spark_reports/export/queries.py": "expressions of ours, and days",
    "spark_reports/running/loading.py": "names of tables and columns",
    "pushserver/console/notifications/metrics.py": "names of the token types",
    "pushserver/console/health/traffic.py": "names of the token types",
    "pushserver/console/health/stored.py": "statements of other modules and of gauges, and their labels",
}
# Tables that are named without their models, which no other module may import: of a gateway, and of the console.
UNSEEN = {
    ("spark_reports/export/queries.py", "notifications_unknowngatewayerror"),
    ("spark_reports/export/queries.py", "pushserver_canaryrun"),
}


class Sql(NamedTuple):
    """One string of SQL: its app and module, its text without inserted expressions, and those expressions."""

    app: str
    module: str
    text: str
    put_in: tuple[str, ...]


OPERATED = {
    "waku": "waku_bridge",
    "xmpp": "xmpp_bridge",
    "gorush": "notifications",
    "notifications": "notifications",
    "registrations": "registrations",
    "reports": "spark_reports",
}


@cache
def statements() -> list[Sql]:
    return [sql for app in OURS for path in sorted((ROOT / app).rglob("*.py")) for sql in _in(path)]


def app_operated(module: Path) -> str:
    """Return the app of a module, which for a package of the console is the one that it shows and operates."""
    if module.parts[:2] == ("pushserver", "console"):
        return OPERATED.get(module.parts[2].removesuffix(".py"), "pushserver")
    return module.parts[0]


def _in(path: Path) -> Iterator[Sql]:
    module = path.relative_to(ROOT)
    app = app_operated(module)
    if LEFT_OUT & set(module.parts) or not KEYWORD.search(source := path.read_text()):
        return
    nodes = list(ast.walk(ast.parse(source)))
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in prose | parts:
            text, put_in = _text(node)
            if KEYWORD.search(text):
                yield Sql(app, str(module), text, put_in)


def _text(node: ast.Constant | ast.JoinedStr) -> tuple[str, tuple[str, ...]]:
    if isinstance(node, ast.Constant):
        return (node.value if isinstance(node.value, str) else ""), ()
    texts = [str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values]
    return "".join(texts), tuple(ast.unparse(p.value) for p in node.values if isinstance(p, ast.FormattedValue))


@cache
def tables() -> dict[str, type[models.Model]]:
    own = [model for model in apps.get_models() if model.__module__.split(".")[0] in OURS]
    return {model._meta.db_table: model for model in own}


def app_of(table: str) -> str:
    return tables()[table].__module__.split(".")[0]


def named_in(sql: Sql) -> set[str]:
    return tables().keys() & set(re.findall(r"\w+", sql.text))


def imported(module: str) -> set[str]:
    tree = ast.parse((ROOT / module).read_text())
    return {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}


def test_the_search_finds_the_sql_of_the_server() -> None:
    assert len(statements()) > 150
    assert len({table for sql in statements() for table in named_in(sql)}) > 20


def test_no_app_writes_the_table_of_another() -> None:
    foreign = [(sql, table) for sql in statements() for table in named_in(sql) if app_of(table) != sql.app]
    assert [(s.module, t) for s, t in foreign if re.search(WRITES.format(t), s.text)] == []


def test_nothing_writes_a_view() -> None:
    views = [name for name, model in tables().items() if not model._meta.managed]
    assert views
    assert [s.module for s in statements() for view in views if re.search(WRITES.format(view), s.text)] == []


def test_a_module_that_reads_the_table_of_another_app_imports_its_model() -> None:
    foreign = {(sql.module, table) for sql in statements() for table in named_in(sql) if app_of(table) != sql.app}
    assert {(m, t) for m, t in foreign if tables()[t].__name__ not in imported(m)} == UNSEEN


def test_a_limit_stands_in_no_subquery_of_in() -> None:
    """PostgreSQL may run a subquery of ``IN`` once for each compared row, and LIMIT then chooses other rows
    each time.
    """
    limited = r"\bIN \(\s*SELECT(?:[^()]|\(\w+\))*\bLIMIT\b"
    assert [sql.module for sql in statements() if re.search(limited, sql.text)] == []


def test_only_constants_are_put_into_a_statement() -> None:
    put_in = {sql.module for sql in statements() for each in sql.put_in if not CONSTANT.fullmatch(each)}
    assert put_in == PUT_TOGETHER.keys()
