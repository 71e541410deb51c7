"""Migrations of a release run while the version before it serves.

On a table that grows none may

* rewrite the table, or read it from end to end, under a lock that blocks everybody,
* remove what the running version reads or writes, or add a column that the running version would have to fill.

`ACCEPTED` has the exceptions with their reasons. A new migration is never accepted by its number alone.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from importlib import import_module
from uuid import UUID

import psycopg
import pytest
from django.apps import apps
from django.contrib.auth.models import Group, Permission
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.db.migrations import AddField, AddIndex, Migration, RunPython
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from django.db.models import Index, TextField

from bench.life import TABLES
from kit.db.base import fetch
from pushserver.console.models import CanaryRun
from pushserver.roles import seed_roles

# Indexes cannot be made concurrently in the transaction of a test.
pytestmark = pytest.mark.django_db(transaction=True)
NOW = datetime(2026, 12, 1, tzinfo=UTC)
OURS = (
    *("buckets", "expiry", "notifications", "pushserver"),
    *("registrations", "spark_reports", "waku_bridge", "xmpp_bridge"),
)
# Tables that stay small on every installation: configuration, or one row for each day, channel, node or operator.
SMALL = frozenset(
    (
        *("buckets_sharedbucket", "notifications_channel", "notifications_gatewayerrorrule", "notifications_halt"),
        *("notifications_queue", "notifications_unknowngatewayerror", "pushserver_apitoken"),
        *("pushserver_trafficminute", "spark_reports_publishedday"),
        *(
            "spark_reports_pseudonymseed",
            "spark_reports_reportrun",
            "spark_reports_requestedrun",
            "waku_bridge_canaryenvelope",
        ),
        *("pushserver_canaryrun", "waku_bridge_storewatermark", "xmpp_bridge_app", "xmpp_bridge_canarystanza"),
    )
)
# The last migration of each app in release 0.2.0. Earlier databases cannot be upgraded.
FIRST_RELEASE = dict.fromkeys(OURS, "0001_initial")
# Later migrations that may do what others must not: (app, name) → the reason why nobody waits for it.
POSTPONED = "processes of the release before postpone their work until they are replaced"
CANARIES = "there is one row a minute for a week; the task of the release before fails until its worker is replaced"
PARTITIONED = "no index of a table with partitions can be dropped concurrently; a migration waits 10 s for locks"
FEW = "these tables have few rows, and the release before writes no id there"
ACCEPTED: dict[tuple[str, str], str] = {
    ("notifications", "0011_open_requests"): POSTPONED,
    ("notifications", "0012_open_notifications"): POSTPONED,
    ("notifications", "0013_attempts_with_results"): POSTPONED,
    ("notifications", "0014_one_table_of_halts"): POSTPONED,
    ("notifications", "0015_reports_in_requests"): POSTPONED,
    ("notifications", "0017_due_times"): POSTPONED,
    ("notifications", "0020_decided_without_id"): FEW,
    ("notifications", "0021_counts_without_id"): FEW,
    ("pushserver", "0006_one_table_of_counts"): POSTPONED,
    ("pushserver", "0007_failed_logins"): "these tables have a few rows, and nobody logs in for the moment",
    ("pushserver", "0008_fewer_indexes"): "only alerts of incidents are in this table, which are few",
    ("pushserver", "0009_canary_runs"): "there are some hundred permissions and a few roles",
    ("waku_bridge", "0005_reply_due_at"): POSTPONED,
    ("waku_bridge", "0007_open_replies"): POSTPONED,
    ("waku_bridge", "0008_open_envelopes"): POSTPONED,
    ("waku_bridge", "0009_fewer_indexes"): PARTITIONED,
    ("waku_bridge", "0010_envelopes_due_at"): POSTPONED,
    ("waku_bridge", "0012_still_fewer_indexes"): PARTITIONED,
    ("waku_bridge", "0013_canary_runs_moved"): CANARIES,
    ("xmpp_bridge", "0005_canary_runs_moved"): CANARIES,
}

# Statements that harm a running server, and what to do instead. The first group is the table.
_TABLE = r'"?(\w+)"?'
_ALTER = rf"^ALTER TABLE (?:ONLY )?{_TABLE} .*"
RULES = {
    re.compile(pattern, re.IGNORECASE | re.DOTALL): reason
    for pattern, reason in {
        rf"^CREATE (?:UNIQUE )?INDEX (?!CONCURRENTLY)\S+ ON {_TABLE}": "blocks writers: make it concurrently",
        rf"^DROP INDEX (?!CONCURRENTLY)(?:IF EXISTS )?{_TABLE}": "blocks everybody: drop it concurrently",
        rf"{_ALTER}ADD CONSTRAINT \S+ (?:FOREIGN KEY|CHECK)(?!.*NOT VALID)": (
            "reads the whole table under a lock: add it NOT VALID, and validate it in the next migration"
        ),
        rf"{_ALTER}ADD CONSTRAINT \S+ (?:UNIQUE|PRIMARY KEY|EXCLUDE)(?!.*USING INDEX)": (
            "builds an index under a lock: make it concurrently first, and add the constraint USING INDEX"
        ),
        rf"{_ALTER}ALTER COLUMN \S+ TYPE ": "rewrites the whole table: add a column, and copy in steps",
        rf"{_ALTER}ALTER COLUMN \S+ SET NOT NULL": (
            "reads the whole table under a lock: add a CHECK NOT VALID, validate it, set NOT NULL a migration later"
        ),
        rf"{_ALTER}ADD COLUMN .*(?:GENERATED ALWAYS AS|DEFAULT .*(?:random|clock_timestamp|uuid|nextval)\w*\()": (
            "rewrites the whole table: add it without a value, and fill it in steps"
        ),
        rf"{_ALTER}ADD COLUMN .* (?:UNIQUE|REFERENCES|PRIMARY KEY)\b": "builds an index or reads all under a lock",
        rf"{_ALTER}ALTER COLUMN \S+ DROP DEFAULT": "leaves the running version without a value: use db_default",
        rf"{_ALTER}(?:DROP COLUMN|RENAME COLUMN|RENAME TO)": "removes a part in use: remove it in the next release",
        rf"^(?:DROP TABLE|TRUNCATE)(?: IF EXISTS)? {_TABLE}": "removes a table that the running version uses",
        rf"^(?:CLUSTER|VACUUM FULL) {_TABLE}": "rewrites the whole table under a lock",
        rf"^(?:WITH .*)?(?:UPDATE|DELETE FROM) {_TABLE}": "changes rows of a big table: do it in steps, outside",
    }.items()
}


def statements(script: str) -> Iterator[str]:
    """Yield the statements of a script without comments and with single blanks."""
    for part in re.split(r";\s*(?:\n|$)", re.sub(r"--[^\n]*", "", script)):
        if statement := " ".join(part.split()).rstrip(";"):
            yield statement


def faults(script: Iterable[str], big: frozenset[str], indexes: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield statements of one migration that harm a big table, with the reason.

    ``big`` are tables that exist before the migration; ``indexes`` has the table of each index.
    """
    for statement in script:
        for pattern, reason in RULES.items():
            found = pattern.search(statement)
            if found and indexes.get(found.group(1), found.group(1)) in big:
                yield statement, reason
                break


def _migrations() -> dict[tuple[str, str], Migration]:
    disk = MigrationLoader(connection).disk_migrations
    return {key: migration for key, migration in disk.items() if key[0] in OURS}


def _before(migration: Migration) -> ProjectState:
    return MigrationLoader(connection).project_state((migration.app_label, migration.name), at_end=False)


def _faults(migration: Migration, before: ProjectState) -> Iterator[str]:
    with connection.schema_editor(collect_sql=True, atomic=False) as editor:
        migration.apply(before.clone(), editor, collect_sql=True)
    there = {model._meta.db_table for model in before.apps.get_models()} | {"django_admin_log"}
    script = [one for text in editor.collected_sql for one in statements(f"{text}\n")]
    indexes = _indexes(there) | {
        index.name: model._meta.db_table for model in before.apps.get_models() for index in model._meta.indexes
    }  # with those that no database has any more
    for statement, reason in faults(script, frozenset(there - SMALL), indexes):
        yield f"`{statement[:100]}` {reason}"
    if any(isinstance(operation, RunPython) for operation in migration.operations):
        yield "RunPython may change any number of rows in one transaction: add the reason why they are few to ACCEPTED"


def _indexes(tables: set[str]) -> dict[str, str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexname, tablename FROM pg_indexes WHERE tablename = ANY(%s)", [sorted(tables)])
        return dict(cursor.fetchall())


def test_no_migration_rewrites_or_locks_a_table_that_grows() -> None:
    found = [
        f"{app}.{name}: {fault}"
        for (app, name), migration in sorted(_migrations().items())
        if (app, name) not in ACCEPTED and name > FIRST_RELEASE[app]
        for fault in _faults(migration, _before(migration))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (AddIndex("opennotification", Index(fields=["chat_id"], name="by_chat")), "concurrently"),
        (AddField("opennotification", "colour", TextField(default="")), "db_default"),
        (AddField("opennotification", "colour", TextField(default="", db_default="")), ""),
        (RunPython(lambda _apps, _editor: None), "RunPython"),
    ],
)
def test_the_check_finds_what_a_careless_migration_does(operation: Operation, reason: str) -> None:
    migration = type("Migration", (Migration,), {"operations": [operation]})("0999_careless", "notifications")
    found = list(_faults(migration, MigrationLoader(connection).project_state()))
    assert bool(found) is bool(reason)
    assert reason in "".join(found)


def _permissions() -> dict[str, set[str]]:
    return {group.name: {each.codename for each in group.permissions.all()} for group in Group.objects.all()}


@pytest.mark.django_db
def test_runs_of_both_canaries_come_into_one_table_and_each_role_may_do_what_it_could() -> None:
    """Remove the permission and make the two tables as the release before had them, then migrate."""
    Permission.objects.filter(codename="view_canaryrun").delete()
    auditors = Group.objects.create(name="auditors")
    moved = [
        _migrations()["waku_bridge", "0013_canary_runs_moved"],
        _migrations()["xmpp_bridge", "0005_canary_runs_moved"],
    ]
    for migration, fields in zip(moved, ({"is_dry_run": False, "query_ms": 7}, {"device": UUID(int=1)}), strict=True):
        former = _before(migration).apps.get_model(migration.app_label, "CanaryRun")
        kind = ContentType.objects.create(app_label=migration.app_label, model="canaryrun")
        for verb in ("add", "change", "delete", "view"):
            name = f"Can {verb} canary run"
            may = Permission.objects.create(content_type=kind, codename=f"{verb}_canaryrun", name=name)
        auditors.permissions.add(may)
        with connection.schema_editor() as editor:
            editor.execute(f"DROP VIEW {former._meta.db_table}")
            editor.create_model(former)
        former.objects.create(state="running", started_at=NOW, pseudonym=UUID(int=2), register_ms=5, **fields)
    seed_roles()
    before = _permissions()

    import_module("pushserver.migrations.0009_canary_runs").keep_grants(apps, None)
    for migration in moved:
        with connection.schema_editor() as editor:
            migration.apply(_before(migration), editor)
    seed_roles()

    assert _permissions() == before
    assert set(Permission.objects.filter(codename__endswith="canaryrun").values_list("content_type__app_label")) == {
        ("pushserver",)
    }
    runs = CanaryRun.objects.order_by("network").values_list("network", "times", "is_dry_run", "device", "pseudonym")
    assert list(runs) == [
        ("waku", {"register": 5, "query": 7}, False, None, UUID(int=2)),
        ("xmpp", {"register": 5}, True, UUID(int=1), UUID(int=2)),
    ]
    # As exports of the release before ask:
    assert fetch("SELECT pseudonym FROM waku_bridge_canaryrun") == [(UUID(int=2),)]
    assert fetch("SELECT pseudonym, device FROM xmpp_bridge_canaryrun") == [(UUID(int=2), UUID(int=1))]


def test_a_first_start_has_few_tables_and_indexes(new_database: Callable[[str], str]) -> None:
    with psycopg.connect(new_database("first_start")) as database:
        [(tables, indexes)] = database.execute(TABLES).fetchall()
    assert tables <= 70, "that are no partitions"
    assert indexes <= 250, "with those of the days and weeks that are made ahead"


def test_every_accepted_migration_exists_and_would_be_refused() -> None:
    migrations = _migrations()
    assert set(FIRST_RELEASE.items()) <= set(migrations)
    for key, reason in ACCEPTED.items():
        assert len(reason) > 20
        assert list(_faults(migrations[key], _before(migrations[key])))


def test_every_table_listed_as_small_exists() -> None:
    assert {model._meta.db_table for model in apps.get_models()} >= SMALL


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ('CREATE INDEX "a" ON "thing" ("b");', "blocks writers"),
        ('CREATE UNIQUE INDEX "a" ON "thing" ("b");', "blocks writers"),
        ('CREATE INDEX CONCURRENTLY "a" ON "thing" ("b");', ""),
        ('CREATE INDEX "a" ON "other" ("b");', ""),
        ("DROP INDEX a_of_thing;", "drop it concurrently"),
        ("DROP INDEX CONCURRENTLY IF EXISTS a_of_thing;", ""),
        ('ALTER TABLE "thing" ADD COLUMN "a" text NULL;', ""),
        ('ALTER TABLE "thing" ADD COLUMN "a" text DEFAULT \'\' NOT NULL;', ""),
        ('ALTER TABLE "thing" ADD COLUMN "a" uuid DEFAULT gen_random_uuid() NOT NULL;', "rewrites"),
        ('ALTER TABLE "thing" ADD COLUMN "a" int GENERATED ALWAYS AS (b + 1) STORED;', "rewrites"),
        ('ALTER TABLE "thing" ADD COLUMN "a" int NULL UNIQUE;', "builds an index"),
        ('ALTER TABLE "thing" ALTER COLUMN "a" DROP DEFAULT;', "db_default"),
        ('ALTER TABLE "thing" ALTER COLUMN "a" TYPE bigint USING "a"::bigint;', "rewrites"),
        ('ALTER TABLE "thing" ALTER COLUMN "a" SET NOT NULL;', "reads the whole table"),
        ('ALTER TABLE "thing" ADD CONSTRAINT "c" CHECK (a > 0);', "NOT VALID"),
        ('ALTER TABLE "thing" ADD CONSTRAINT "c" CHECK (a > 0) NOT VALID;', ""),
        ('ALTER TABLE "thing" VALIDATE CONSTRAINT "c";', ""),
        ('ALTER TABLE "thing" ADD CONSTRAINT "c" UNIQUE ("a");', "builds an index"),
        ('ALTER TABLE "thing" ADD CONSTRAINT "c" UNIQUE USING INDEX "a";', ""),
        ('ALTER TABLE "thing" DROP COLUMN "a" CASCADE;', "removes a"),
        ('ALTER TABLE "thing" RENAME COLUMN "a" TO "b";', "removes a"),
        ('DROP TABLE "thing" CASCADE;', "removes a"),
        ('UPDATE "thing" SET a = 1;', "in steps"),
        ("WITH one AS (SELECT 1) UPDATE thing SET a = 1;", "in steps"),
        ('DELETE FROM "thing" WHERE a = 1;', "in steps"),
        ('-- a comment\nINSERT INTO "thing" (a) VALUES (1);', ""),
    ],
)
def test_each_kind_of_statement_is_judged(script: str, reason: str) -> None:
    found = [why for _, why in faults(statements(script), frozenset({"thing"}), {"a_of_thing": "thing"})]
    assert bool(found) == bool(reason)
    assert not reason or re.search(reason, found[0])
