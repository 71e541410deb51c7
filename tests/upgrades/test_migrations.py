"""Migrations of a release run while the version before it serves: none rewrites or locks a table that grows.

What is accepted stands in `ACCEPTED`, with its reason. A new migration is never accepted by its number alone.
"""

import re
from collections.abc import Iterator

import pytest
from django.apps import apps
from django.db import connection
from django.db.migrations import Migration, RunPython
from django.db.migrations.loader import MigrationLoader

from tests.upgrades.locking import faults, statements

# Without a transaction of the test, in which indexes cannot be made concurrently.
pytestmark = pytest.mark.django_db(transaction=True)
OURS = ("buckets", "notifications", "pushserver", "registrations", "spark_reports", "waku_bridge", "xmpp_bridge")
# Tables that stay small on every installation: configuration, one row a day, a channel, a node or an operator.
SMALL = frozenset(
    {
        "buckets_sharedbucket",
        "notifications_channel",
        "notifications_gatewayerrorrule",
        "notifications_halt",
        "notifications_queue",
        "notifications_unknowngatewayerror",
        "pushserver_apitoken",
        "pushserver_attemptminute",
        "pushserver_trafficminute",
        "spark_reports_publishedday",
        "spark_reports_reportrun",
        "spark_reports_requestedrun",
        "waku_bridge_canaryenvelope",
        "waku_bridge_canaryrun",
        "waku_bridge_storewatermark",
        "waku_bridge_storewindow",
        "xmpp_bridge_app",
        "xmpp_bridge_canaryrun",
        "xmpp_bridge_canarystanza",
    }
)
BEFORE_THE_FIRST_RELEASE = "older than 0.1.0: no installation upgrades through it"
# The last migration of each app in release 0.1.0.
FIRST_RELEASE = {
    "notifications": "0015_grades",
    "pushserver": "0005_xmpp_traffic",
    "registrations": "0011_front_door_of_devices",
    "spark_reports": "0003_front_doors",
    "waku_bridge": "0011_postponed_envelopes",
    "xmpp_bridge": "0003_canary",
}
# Later ones that may do what is refused elsewhere: (app, name) → why nobody waits for it.
NOTHING_WAS_RELEASED = "made before anything was released: no installation upgrades through it"
ACCEPTED: dict[tuple[str, str], str] = {
    ("notifications", "0018_queues"): NOTHING_WAS_RELEASED,
    ("notifications", "0019_expiring"): NOTHING_WAS_RELEASED,
    ("notifications", "0021_all_attempts"): NOTHING_WAS_RELEASED,
    ("notifications", "0022_by_route"): NOTHING_WAS_RELEASED,
    ("notifications", "0023_attempts_by_day"): NOTHING_WAS_RELEASED,
    ("notifications", "0024_by_the_day_of_the_end"): NOTHING_WAS_RELEASED,
    ("registrations", "0012_delivered_digest"): NOTHING_WAS_RELEASED,
    ("registrations", "0014_events_by_week"): NOTHING_WAS_RELEASED,
    ("waku_bridge", "0014_by_day"): NOTHING_WAS_RELEASED,
    ("xmpp_bridge", "0006_key_name"): "the column may be null, so the version before need not write a value",
    (
        "waku_bridge",
        "0012_envelope_faults",
    ): "only envelopes of three days that failed by a fault of ours, which are few",
    (
        "spark_reports",
        "0004_schema_4",
    ): "reports are a few rows a day, and what an older worker makes meanwhile fails and is made again",
}


def test_no_migration_rewrites_or_locks_a_table_that_grows() -> None:
    found = [
        f"{app}.{name}: {fault}"
        for (app, name), migration in sorted(_migrations().items())
        if (app, name) not in ACCEPTED and name > FIRST_RELEASE.get(app, "")
        for fault in _faults(migration)
    ]
    assert found == []


def test_the_check_finds_what_the_migrations_before_the_first_release_did() -> None:
    """It would be worth nothing if it found nothing in 48 migrations that were written without it."""
    found = {key: list(_faults(migration)) for key, migration in _migrations().items()}
    # AddIndex without CONCURRENTLY, and a column that is not null and whose default is ours alone.
    assert any("concurrently" in fault for fault in found["notifications", "0015_grades"])
    assert sum(bool(faulty) for faulty in found.values()) > 10


def test_what_is_accepted_exists_and_would_be_refused() -> None:
    migrations = _migrations()
    assert set(FIRST_RELEASE.items()) <= set(migrations)
    for key, reason in ACCEPTED.items():
        assert len(reason) > 20
        assert list(_faults(migrations[key]))


def test_every_table_that_is_called_small_exists() -> None:
    assert {model._meta.db_table for model in apps.get_models()} >= SMALL


def _migrations() -> dict[tuple[str, str], Migration]:
    disk = MigrationLoader(connection).disk_migrations
    return {key: migration for key, migration in disk.items() if key[0] in OURS}


def _faults(migration: Migration) -> Iterator[str]:
    loader = MigrationLoader(connection)
    before = loader.project_state((migration.app_label, migration.name), at_end=False)
    with connection.schema_editor(collect_sql=True, atomic=False) as editor:
        migration.apply(before.clone(), editor, collect_sql=True)
    there = {model._meta.db_table for model in before.apps.get_models()} | {"django_admin_log"}
    script = [one for text in editor.collected_sql for one in statements(f"{text}\n")]
    for statement, reason in faults(script, frozenset(there - SMALL), _indexes(there)):
        yield f"`{statement[:100]}` {reason}"
    if any(isinstance(operation, RunPython) for operation in migration.operations):
        yield "RunPython may change any number of rows in one transaction: say in ACCEPTED why these are few"


def _indexes(tables: set[str]) -> dict[str, str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexname, tablename FROM pg_indexes WHERE tablename = ANY(%s)", [sorted(tables)])
        return dict(cursor.fetchall())


BIG = frozenset({"thing"})


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ('CREATE INDEX "a" ON "thing" ("b");', "keeps writers out"),
        ('CREATE UNIQUE INDEX "a" ON "thing" ("b");', "keeps writers out"),
        ('CREATE INDEX CONCURRENTLY "a" ON "thing" ("b");', ""),
        ('CREATE INDEX "a" ON "other" ("b");', ""),
        ("DROP INDEX a_of_thing;", "drop it concurrently"),
        ("DROP INDEX CONCURRENTLY IF EXISTS a_of_thing;", ""),
        ('ALTER TABLE "thing" ADD COLUMN "a" text NULL;', ""),
        ('ALTER TABLE "thing" ADD COLUMN "a" text DEFAULT \'\' NOT NULL;', ""),
        ('ALTER TABLE "thing" ADD COLUMN "a" uuid DEFAULT gen_random_uuid() NOT NULL;', "anew"),
        ('ALTER TABLE "thing" ADD COLUMN "a" int GENERATED ALWAYS AS (b + 1) STORED;', "anew"),
        ('ALTER TABLE "thing" ADD COLUMN "a" int NULL UNIQUE;', "builds an index"),
        ('ALTER TABLE "thing" ALTER COLUMN "a" DROP DEFAULT;', "db_default"),
        ('ALTER TABLE "thing" ALTER COLUMN "a" TYPE bigint USING "a"::bigint;', "anew"),
        ('ALTER TABLE "thing" ALTER COLUMN "a" SET NOT NULL;', "reads the whole table"),
        ('ALTER TABLE "thing" ADD CONSTRAINT "c" CHECK (a > 0);', "NOT VALID"),
        ('ALTER TABLE "thing" ADD CONSTRAINT "c" CHECK (a > 0) NOT VALID;', ""),
        ('ALTER TABLE "thing" VALIDATE CONSTRAINT "c";', ""),
        ('ALTER TABLE "thing" ADD CONSTRAINT "c" UNIQUE ("a");', "builds an index"),
        ('ALTER TABLE "thing" ADD CONSTRAINT "c" UNIQUE USING INDEX "a";', ""),
        ('ALTER TABLE "thing" DROP COLUMN "a" CASCADE;', "takes away"),
        ('ALTER TABLE "thing" RENAME COLUMN "a" TO "b";', "takes away"),
        ('DROP TABLE "thing" CASCADE;', "takes away"),
        ('UPDATE "thing" SET a = 1;', "in steps"),
        ("WITH one AS (SELECT 1) UPDATE thing SET a = 1;", "in steps"),
        ('DELETE FROM "thing" WHERE a = 1;', "in steps"),
        ('-- a comment\nINSERT INTO "thing" (a) VALUES (1);', ""),
    ],
)
def test_each_kind_of_statement_is_judged(script: str, reason: str) -> None:
    found = [why for _, why in faults(statements(script), BIG, {"a_of_thing": "thing"})]
    assert bool(found) == bool(reason)
    assert not reason or re.search(reason, found[0])
