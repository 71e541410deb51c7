"""Query plans of statements on the tables of open rows while the planner's statistics count no rows there.

PostgreSQL treats such a table as empty until the next ANALYZE, even when rows come in. Every access path then costs the
same to the planner. A statement that may read the whole table takes seconds in a flood, as the siege has shown.
"""

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

import pytest
from django.db import connection, transaction
from django.db.models import Model
from pytest_django import DjangoDbBlocker

from kit.batches.looking import query_of
from kit.db.base import fetch
from kit.db.clock import with_days
from kit.db.sessions import BATCH_WORKER, set_all
from tests.rig.delivering import Process
from tests.rig.rows import delete_all, make_envelope, make_notification, make_reply, make_request
from tests.rig.statements import generic_plan

APPS = ("notifications", "waku_bridge", "xmpp_bridge")
LEFT_OUT = re.compile(r"\.(?:tests|migrations|management|client|console|admin)\b")
STATEMENT = re.compile(r"\s*(?:WITH|SELECT|UPDATE|DELETE|INSERT)\b")
TRUE_OF_ALL = re.compile(r"\((?:queue_id|route_id|expires_at) >=? (?:'[^']*'::[\w ]+|0)\)(?: AND )?")
# parts of other statements
PARTS = {f"waku_bridge.inbox.inbox.{name}" for name in ("_ROWS", "_A_FIFTH")}
WORK = r"\b(?:notifications|waku_bridge)_open(?:\w+)\b"
SCAN = re.compile(rf"\bScan .*on {WORK}")
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def _statements() -> Iterator[tuple[str, str]]:
    for app in APPS:
        package = importlib.import_module(app)
        for module in pkgutil.walk_packages(package.__path__, f"{app}."):
            if not LEFT_OUT.search(module.name):
                yield from _in(module.name)


def _in(module: str) -> Iterator[tuple[str, str]]:
    for name, value in vars(importlib.import_module(module)).items():
        if isinstance(value, str) and STATEMENT.match(value) and re.search(WORK, value):
            yield f"{module}.{name}", value


STATEMENTS = {name: sql for name, sql in _statements() if name not in PARTS}
# Statements that also read ended rows: keys of three days, or all notifications of one request.
OF_DAYS = {name for name, sql in STATEMENTS.items() if "{days}" in sql}
WRITING = [name for name, sql in STATEMENTS.items() if re.search(r"\b(?:UPDATE notif|UPDATE waku|DELETE FROM)", sql)]
A_DAY = re.compile(
    r" on (?:notifications_endednotification|notifications_answeredrequest|waku_bridge_ended\w+)_(?:default|d\d{8})\b"
)


@pytest.fixture(scope="module", params=["nothing came yet", "all has ended"])
def plans(
    request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: DjangoDbBlocker
) -> Iterator[dict[str, str]]:
    """Return the plan of each statement while the statistics count no rows."""
    with django_db_blocker.unblock(), transaction.atomic():
        _count_nothing(() if "yet" in request.param else (make_envelope, make_reply, make_request, make_notification))
        yield {name: generic_plan(with_days(sql, NOW)) for name, sql in STATEMENTS.items()}
        transaction.set_rollback(True)


def _count_nothing(rows: Sequence[Callable[[], Model]]) -> None:
    """Make rows, delete them, and have PostgreSQL count what is left."""
    for model in {type(make()) for make in rows}:
        delete_all(model)
    with connection.cursor() as cursor:
        cursor.execute("SELECT relname FROM pg_class WHERE relname ~ %s AND relkind = 'r'", [WORK.replace(r"\b", "")])
        for (table,) in cursor.fetchall():
            cursor.execute(f"ANALYZE {table}")
    fetch(f"SELECT {set_all(BATCH_WORKER)}")


def _scans(plan: str) -> list[tuple[str, str, str]]:
    """Return the scans of tables of open rows, each with the two plan lines before it and the one after it."""
    lines = ["", "", *plan.splitlines(), ""]
    return [
        (f"{lines[number - 2]}\n{lines[number - 1]}\n", line, lines[number + 1])
        for number, line in enumerate(lines)
        if SCAN.search(line)
    ]


def test_statements_are_found() -> None:
    assert len(STATEMENTS) > 40
    assert len(OF_DAYS) > 1
    assert set(STATEMENTS) > OF_DAYS


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_statement_reads_all_that_is_under_way(plans: dict[str, str], name: str) -> None:
    """Each statement finds rows by an index: by their key, by the head of their queue, or the first of an order."""
    for before, scan, after in _scans(plans[name]):
        is_first = re.search(r"\bLimit .*\n(?:.*\bLockRows\b.*\n)?$", before)
        narrowed = "Index Cond" in after and TRUE_OF_ALL.sub("", after.partition("Index Cond: ")[2]).strip("() ")
        assert narrowed or (is_first and "Index" in scan), plans[name]


@pytest.mark.parametrize("name", WRITING)
def test_rows_that_are_written_are_compared_with_no_other_row(plans: dict[str, str], name: str) -> None:
    """A join would compare each of two hundred rows with every other."""
    assert not re.search(r"Join Filter: .*\b(?:id|hash) = ", plans[name]), plans[name]


@pytest.mark.parametrize("name", sorted(STATEMENTS.keys() - OF_DAYS))
def test_statements_of_the_queues_plan_the_table_of_open_rows_and_no_day(plans: dict[str, str], name: str) -> None:
    assert A_DAY.findall(plans[name]) == []


@pytest.mark.django_db
def test_waiting_rows_are_read_from_the_table_of_open_rows_alone() -> None:
    queries = [query_of(step) for step in Process().worker._steps]
    of_work = [sql for sql in queries if re.search(WORK, sql)]
    assert len(of_work) >= 5
    for sql in of_work:
        plan = generic_plan(f"SELECT {sql}")
        assert _scans(plan)
        assert not A_DAY.search(plan)
