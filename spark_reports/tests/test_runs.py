"""Whole runs: PostgreSQL → lake → spark-submit → lake and PostgreSQL, compared with figures computed in SQL."""

from contextlib import suppress
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.db import connection, transaction
from django.utils import timezone

from spark_reports.jobs.tables import MIN_USUAL_DAYS
from spark_reports.lake import scratch_in
from spark_reports.models import Anomaly, DataQuality, PublishedDay, ReportRun, TokenChurn
from spark_reports.nights.nights import last_closed_day
from spark_reports.running import spark
from spark_reports.running.runs import run_reports
from spark_reports.tests.history import History, midnight
from tests.rig.budget import first_everyday

State = ReportRun.State
NOT_COMPILED = "spark.sql.codegen.wholeStage=false"  # as in `quick`: compiling does not pay for an empty day
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("closed_at_midnight")]


class Watching:
    """Notes the temporary files and the command lines of Spark, each time that Spark has finished a report."""

    def __init__(self, scratch: Path) -> None:
        self.scratch, self.shuffled, self.modes, self.arguments = scratch, set[Path](), set[int](), set[str]()

    def __call__(self, line: str) -> None:
        if "computed" not in line:
            return
        with suppress(FileNotFoundError):  # Spark removes folders meanwhile
            self.shuffled.update(self.scratch.glob("blockmgr-*/*/*"))
        self.modes.add(self.scratch.stat().st_mode & 0o777)
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # raised for a zombie, too
                self.arguments |= set(process.cmdline())


@pytest.mark.parametrize(("master", "count"), first_everyday(("local[2]", 1), ("local[2]", 4), ("a cluster", 4)))
def test_reports_agree_with_plain_sql_and_temporary_files_are_private(
    lake_url, spark_conf, settings, request, tmp_path, monkeypatch, master, count
):
    """A usual band, and so an anomaly, needs three days before. Spark's shuffle files hold pseudonyms."""
    cluster = request.getfixturevalue("cluster") if master == "a cluster" else None
    settings.SPARK_MASTER = cluster.url if cluster else master
    settings.DATA_DIR, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("TMPDIR", str(elsewhere))
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
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

    watching = Watching(scratch_in(settings.DATA_DIR))
    [run] = run_reports(first, last, progress=watching)

    assert (run.state, run.error, list(DataQuality.objects.filter(is_ok=False).values())) == (State.SUCCEEDED, "", [])
    assert list(PublishedDay.objects.order_by("day").values_list("day", flat=True)) == days
    for day in days:
        assert_recomputed(day)
    anomalies = {(last, "error_rate"), (last, "churn_rate")} if count > MIN_USUAL_DAYS else set()
    assert set(Anomaly.objects.values_list("day", "figure")) == anomalies
    assert not TokenChurn.objects.exclude(unexplained=0).exists()
    assert not (Path(lake_url) / "incoming").exists()
    assert watching.modes == {0o700}
    assert bool(watching.shuffled) is (cluster is None)  # those of a cluster are in the folders of its workers
    assert f"-Djava.io.tmpdir={watching.scratch}" in watching.arguments
    assert not watching.scratch.exists()
    assert not list(elsewhere.iterdir())
    assert cluster is None or cluster.workers_used() == 2


@pytest.mark.nightly
def test_a_night_writes_an_archive_of_classes_for_the_next_and_a_broken_archive_is_ignored(
    lake_url, java, settings, tmp_path, monkeypatch
):
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)  # Java takes no archive with a folder before the JARs
    options_of = spark._for_one_machine
    monkeypatch.setattr(spark, "_for_one_machine", lambda sub: (*options_of(sub), "--conf", NOT_COMPILED))
    settings.DATA_DIR = tmp_path / "data"
    settings.DATA_DIR.mkdir()
    day = last_closed_day(timezone.now())

    [first] = run_reports(day, day)
    [archive] = settings.DATA_DIR.iterdir()
    size = archive.stat().st_size
    archive.unlink()
    archive.write_bytes(b"no archive")
    [second] = run_reports(day, day)

    assert (first.state, second.state) == (State.SUCCEEDED, State.SUCCEEDED)
    assert size > 50_000_000
    assert not (Path(lake_url) / "incoming").exists()


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
