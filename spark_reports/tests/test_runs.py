"""Whole runs: PostgreSQL → lake → spark-submit → lake and PostgreSQL, compared with figures computed in SQL."""

from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connection, transaction
from django.utils import timezone

from spark_reports.jobs.tables import MIN_USUAL_DAYS, PLACE
from spark_reports.models import (
    Anomaly,
    DataQuality,
    ErrorRate,
    HeavyActor,
    Latency,
    PublishedDay,
    ReportRun,
    TokenChurn,
)
from spark_reports.nights.closing import last_closed_day
from spark_reports.running import spark
from spark_reports.running.runs import Progress, run_reports
from spark_reports.tests.history import History, midnight
from tests.rig.budget import first_everyday

State = ReportRun.State
NOT_COMPILED = "spark.sql.codegen.wholeStage=false"  # as in `quick`: compiling does not pay for an empty day
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("closed_at_midnight")]


def sql(query: str, *values: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        return cursor.fetchall()


@pytest.fixture
def master(request: pytest.FixtureRequest, settings: LazySettings, spark_conf: Path) -> None:
    """Run the test on the threads of this machine, and on a stand-alone master with two workers."""
    if request.param == "a cluster":
        settings.SPARK_MASTER = request.getfixturevalue("cluster").url
    else:
        settings.SPARK_MASTER = request.param


@pytest.mark.parametrize(
    ("master", "count"), first_everyday(("local[2]", 1), ("local[2]", 4), ("a cluster", 4)), indirect=["master"]
)
def test_reports_agree_with_plain_sql(
    lake_url: str, master: None, settings: LazySettings, request: pytest.FixtureRequest, count: int
) -> None:
    """A usual band, and so an anomaly, needs three days before."""
    settings.ENVELOPE_RETENTION_DAYS = 30  # so that all days are complete
    last = last_closed_day(timezone.now())
    first = last - timedelta(days=count - 1)
    days = [first + timedelta(n) for n in range(count)]
    history = History(seed=8)
    for day in (first - timedelta(days=1), *days[:-1]):
        history.add_day(day)
    history.add_day(last, tries=(3,))  # a night unlike those before
    fleet = history.register(midnight(first) - timedelta(hours=1), 80)
    history.kill(midnight(last) + timedelta(hours=1), fleet[:40])
    history.add_unknown_error(midnight(last) + timedelta(hours=3), 12)

    [run] = run_reports(first, last, progress=Progress())

    assert (run.state, run.error, list(DataQuality.objects.filter(is_ok=False).values())) == (State.SUCCEEDED, "", [])
    assert list(PublishedDay.objects.order_by("day").values_list("day", flat=True)) == days
    for day in days:
        assert_agrees(day)
        assert_recomputed(day)
    anomalies = {(last, "error_rate"), (last, "churn_rate")} if count > MIN_USUAL_DAYS else set()
    assert set(Anomaly.objects.values_list("day", "figure")) == anomalies
    assert not TokenChurn.objects.exclude(unexplained=0).exists()
    assert not list((Path(lake_url) / "incoming").iterdir())
    if "cluster" in request.node.name:
        assert request.getfixturevalue("cluster").workers_used() == 2


@pytest.mark.nightly
def test_a_night_writes_an_archive_of_classes_for_the_next_and_a_broken_archive_is_ignored(
    lake_url: str, java: None, settings: LazySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)  # Java takes no archive with a folder before the JARs
    options_of = spark._for_one_machine
    monkeypatch.setattr(spark, "_for_one_machine", lambda sub: (*options_of(sub), "--conf", NOT_COMPILED))
    settings.DATA_DIR = tmp_path / "data"
    settings.DATA_DIR.mkdir()
    day = last_closed_day(timezone.now())

    [first] = run_reports(day, day, progress=Progress())
    [archive] = settings.DATA_DIR.iterdir()
    size = archive.stat().st_size
    archive.unlink()
    archive.write_bytes(b"no archive")
    [second] = run_reports(day, day, progress=Progress())

    assert (first.state, second.state) == (State.SUCCEEDED, State.SUCCEEDED)
    assert size > 50_000_000
    assert not list((Path(lake_url) / "incoming").iterdir())


RECOMPUTE = Path(__file__).parents[2] / "tests" / "reports" / "recompute.sql"
AGAIN = {
    "again_error_rates": "spark_reports_errorrate",
    "again_token_churn": "spark_reports_tokenchurn",
    "again_token_lifetime": "spark_reports_tokenlifetime",
    "again_latency": "spark_reports_latency",
    "again_load_profile": "spark_reports_loadprofile",
    "again_heavy_actors": "spark_reports_heavyactor",
    "again_failure_signatures": "(SELECT * FROM spark_reports_failuresignature WHERE source = 'code') AS codes",
    "again_anomalies": "spark_reports_anomaly",
}
MAY_BE_EMPTY = {"again_anomalies"}


def assert_recomputed(day: date) -> None:
    """Compare every row and column with those of the documented script `recompute.sql`."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(RECOMPUTE.read_text(encoding="utf-8").replace(":day::", f"'{day}'::"))
        for view, table in AGAIN.items():
            cursor.execute(f"SELECT * FROM {view}")
            names = [column.name for column in cursor.description]
            again = sorted(cursor.fetchall(), key=keys_of)
            cursor.execute(f"SELECT {', '.join(names)} FROM {table} WHERE day = %s", [day])
            found = sorted(cursor.fetchall(), key=keys_of)
            assert len(found) == len(again), view
            assert found or view in MAY_BE_EMPTY, view
            for row, other in zip(found, again, strict=True):
                assert dict(zip(names, row, strict=True)) == {
                    name: pytest.approx(value, abs=1e-9) if isinstance(value, float) else value
                    for name, value in zip(names, other, strict=True)
                }, view
        transaction.set_rollback(True)


def keys_of(row: tuple[Any, ...]) -> str:
    """Return the keys of a row, which sort the rows of both sides alike."""
    return repr([value for value in row if not isinstance(value, float) and value is not None][:8])


def assert_agrees(day: date) -> None:
    span = midnight(day), midnight(day) + timedelta(days=1)
    assert dispatch_counts(day) == sql(
        """SELECT token_type, app_topic, bridge, outcome, code, count(*), count(*)::float / sum(count(*)) OVER
             (PARTITION BY token_type, app_topic, bridge) FROM notifications_attempt a
           JOIN notifications_notification n ON n.id = notification_id
           JOIN notifications_notificationrequest r ON r.id = request_id
           WHERE started_at >= %s AND started_at < %s GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5""",
        *span,
    )
    assert gateway_medians(day) == sql(
        """SELECT coalesce(bridge, 'all'), percentile_cont(0.5) WITHIN GROUP (ORDER BY CASE WHEN latency_ms < 10000
             THEN latency_ms ELSE latency_ms / 1000 * 1000 END), count(*) FROM notifications_attempt a
           JOIN notifications_notification n ON n.id = notification_id
           JOIN notifications_notificationrequest r ON r.id = request_id
           WHERE started_at >= %s AND started_at < %s GROUP BY ROLLUP (bridge) ORDER BY 1""",
        *span,
    )
    assert active(day) == active_by_sql(*span)
    [[in_time]] = sql(
        """SELECT avg((answered_at <= reply_due_at)::int)::float FROM notifications_notificationrequest
           WHERE received_at >= %s AND received_at < %s AND bridge = 'waku'""",
        *span,
    )
    assert Latency.objects.get(day=day, stage="answer", platform="all", bridge="all").within_deadline == pytest.approx(
        in_time
    )
    assert replies(day) == sql(
        """SELECT CASE WHEN state = 'pending' THEN 'waiting' WHEN state = 'unconfirmed' AND repeat_count = 0
             THEN 'unchecked' ELSE state END AS outcome, state IN ('abandoned', 'unconfirmed')
             AND (state = 'abandoned' OR repeat_count > 0) AS is_failure, count(*) FROM waku_bridge_outboundreply
           WHERE created_at >= %s AND created_at < %s GROUP BY 1, 2 ORDER BY 1""",
        *span,
    )
    replied = Latency.objects.filter(day=day, stage="reply", platform="all", bridge="all")
    assert list(replied.values_list("events", "max_us")) == sql(
        """SELECT count(*), max(extract(epoch FROM published_at - received_at) * 1000000)::bigint
           FROM waku_bridge_outboundreply r JOIN waku_bridge_inboundenvelope e ON e.hash = r.envelope_hash
           WHERE r.created_at >= %s AND r.created_at < %s AND published_at IS NOT NULL AND repeat_count = 0""",
        *span,
    )
    assert heaviest(day) == sql(
        """SELECT count(*) FROM notifications_notification WHERE created_at >= %s AND created_at < %s
           GROUP BY public_key_hash, CASE public_key_hash WHEN '' THEN installation_id END ORDER BY 1 DESC LIMIT 20""",
        *span,
    )


def dispatch_counts(day: date) -> list[tuple[Any, ...]]:
    token_types = {"ios": 1, "android": 2}
    rows = ErrorRate.objects.filter(day=day, hour=None, stage="dispatch")
    return sorted(
        (token_types[r.platform], r.app_topic, r.bridge, r.outcome, r.code, r.events, pytest.approx(r.rate))
        for r in rows
    )


def replies(day: date) -> list[tuple[Any, ...]]:
    rows = ErrorRate.objects.filter(day=day, hour=None, stage="reply").order_by("outcome")
    return list(rows.values_list("outcome", "is_failure", "events"))


def gateway_medians(day: date) -> list[tuple[Any, ...]]:
    rows = Latency.objects.filter(day=day, stage="gateway", platform="all").order_by("bridge")
    return list(rows.values_list("bridge", "p50_ms", "events"))


def heaviest(day: date) -> list[tuple[Any, ...]]:
    return list(HeavyActor.objects.filter(day=day, role="recipient").order_by("rank").values_list("notifications"))


def active(day: date) -> list[tuple[Any, ...]]:
    rows = TokenChurn.objects.filter(day=day).order_by(*PLACE)
    return list(rows.values_list(*PLACE, "active_at_start", "active_at_end"))


ACTIVE = """
    SELECT CASE token_type WHEN 1 THEN 'ios' ELSE 'android' END, app_topic, bridge,
        count(*) FILTER (WHERE at_start)::int, count(*) FILTER (WHERE NOT at_start)::int
    FROM (VALUES (%(since)s, true), (%(until)s, false)) AS moment (until, at_start)
    JOIN registrations_registrationevent e ON e.at < moment.until AND NOT EXISTS (
        SELECT FROM registrations_registrationevent later
        WHERE later.pseudonym = e.pseudonym AND (later.at, later.id) > (e.at, e.id) AND later.at < moment.until)
    WHERE kind NOT IN ('unregistered', 'token_died', 'expired') GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"""


def active_by_sql(since: datetime, until: datetime) -> list[tuple[Any, ...]]:
    """Count active tokens by the last event of each installation."""
    with connection.cursor() as cursor:
        cursor.execute(ACTIVE, {"since": since, "until": until})
        return cursor.fetchall()
