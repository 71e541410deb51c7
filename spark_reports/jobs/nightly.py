"""The program that spark-submit runs: it computes every report of the days of a plan.

    spark-submit --py-files jobs.zip nightly.py --lake URL --plan FILE

The plan is a file on the driver's machine. The program reads the files that the plan lists below the lake, and writes
to the plan's output folder. It uses no database.
"""

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_reports.jobs import sources, tables
from spark_reports.jobs.plan import PROGRESS, Plan
from spark_reports.jobs.reports import (
    anomalies,
    data_quality,
    error_rates,
    failure_signatures,
    latency,
    load_profile,
    token_churn,
    token_lifetime,
)
from spark_reports.jobs.schemas import schema_of
from spark_reports.jobs.session import expect_small_frames, make_session
from spark_reports.jobs.tables import Table

AT_ONCE = 2
CHECK_TASKS = 16


class Nightly:
    """One run: its facts, the earlier reports, and the order in which reports are computed from each other."""

    def __init__(self, spark: SparkSession, lake: str, plan: Plan) -> None:
        self.spark = spark
        self.lake = lake
        self.plan = plan
        self.raw = {t.name: sources.read(spark, lake, plan.facts[t.name], t) for t in tables.EVENT_TABLES}
        self.facts = {
            name: f.where(sources.is_within_day()) if "at" in f.columns else f for name, f in self.raw.items()
        }

    def earlier(self, report: Table) -> DataFrame:
        """Return the published rows of a report for the days before the run."""
        return sources.read(self.spark, self.lake, self.plan.reports[report.name], report)

    def run(self) -> None:
        """Count the facts, then compute and write all reports from the counts, which are small."""
        self._count()
        expect_small_frames(self.spark)
        # Each of these reports is one task or two, so that two reports share the cores.
        with ThreadPoolExecutor(AT_ONCE) as pool:
            errors, tokens = pool.submit(self._error_rates), pool.submit(self._churn)
            load = pool.submit(self._load)
            rates, rates_before = errors.result()
            churn, churn_before = tokens.result()
            quality = pool.submit(self._data_quality, churn, churn_before)
            self.write(anomalies.transform(rates, rates_before, churn, churn_before), tables.ANOMALIES)
            load.result()
            quality.result()

    def _load(self) -> None:
        self.write(load_profile.transform(self.facts["actors"]), tables.LOAD_PROFILE)
        self.write(load_profile.heaviest(self.facts["actors"]), tables.HEAVY_ACTORS)
        self.write(latency.transform(self.durations), tables.LATENCY)

    def _count(self) -> None:
        """Read the facts once, and keep the counts in memory."""
        envelopes, notifications, times, attempts, replies = (
            self.facts[name] for name in ("envelopes", "notifications", "notification_times", "attempts", "replies")
        )
        # Snapshots of earlier days are read for comparison only; the run of their own day has checked them.
        own = {name: self.raw[name].where(F.col("day").isin(self.plan.dates)) for name in self.plan.rows}
        counts = {
            "rows": data_quality.count_all(own),
            "outcomes": error_rates.count_outcomes(envelopes, notifications, attempts, replies),
            "durations": latency.count_durations(envelopes, times, attempts, replies),
        }
        with ThreadPoolExecutor(AT_ONCE) as pool:
            kept = pool.map(self._kept, counts.keys(), counts.values())
            self.found, self.outcomes, self.durations = kept

    def _kept(self, name: str, counts: DataFrame) -> DataFrame:
        started = time.monotonic()
        kept = counts.persist()
        kept.count()
        print_time(f"counts_of_{name}", started)
        return kept

    def _error_rates(self) -> tuple[DataFrame, DataFrame]:
        before = self.earlier(tables.ERROR_RATES)
        rates = self.write(error_rates.transform(self.outcomes, before), tables.ERROR_RATES)
        unknown, known = self.facts["unknown_errors"], self.earlier(tables.FAILURE_SIGNATURES)
        known_days = self.plan.found_days(tables.FAILURE_SIGNATURES.name)
        found = failure_signatures.transform(rates, before, unknown, known, known_days)
        self.write(found, tables.FAILURE_SIGNATURES)
        return rates, before

    def _churn(self) -> tuple[DataFrame, DataFrame]:
        events, active = self.facts["registration_events"], self.facts["active_tokens"]
        churn = self.write(token_churn.transform(events, active), tables.TOKEN_CHURN)
        history_from = {date.fromisoformat(day): date.fromisoformat(at) for day, at in self.plan.history_from.items()}
        survival = token_lifetime.transform(self.facts["token_spells"], history_from)
        self.write(survival, tables.TOKEN_LIFETIME)
        return churn, self.earlier(tables.TOKEN_CHURN)

    def _data_quality(self, churn: DataFrame, churn_before: DataFrame) -> None:
        expected = data_quality.expected_rows(self.spark, self.plan.rows)
        quality = data_quality.transform(expected, self.found, churn, churn_before)
        incomplete = data_quality.incomplete(self.spark, self.plan.incomplete_days)
        history = data_quality.history(self.spark, self.plan.history)
        self.write(sources.union([quality, history, incomplete]), tables.DATA_QUALITY)

    def write(self, frame: DataFrame, report: Table) -> DataFrame:
        """Write one report, report the time that it took, and return a frame that reads its rows from the files.

        There is one file per day, in the folder of the run. No reader opens it until the server has checked all of them
        and published the days: see `spark_reports.lake`. Later frames are computed from the files, without computing
        the report again. Raises AnalysisException when the frame lacks a column of the report.
        """
        started = time.monotonic()
        schema = schema_of(report)
        path = f"{self.lake}/{self.plan.output}/{report.name}"
        columns = [F.col(field.name).cast(field.dataType) for field in schema]
        frame.select(columns).coalesce(1).write.mode("error").partitionBy("day").parquet(path)
        written = self.spark.read.schema(schema).parquet(path).select(schema.fieldNames())
        print_time(report.name, started)
        return written


def check_lake(spark: SparkSession, lake: str, plan: Plan) -> None:
    """Have CHECK_TASKS tasks write into the lake before any work. Raises LakeNotShared if the driver misses a file.

    A local master needs no check.
    """
    if (spark.conf.get("spark.master", "") or "").startswith("local"):
        return
    folder = f"{lake}/{plan.output}/check"
    spark.range(CHECK_TASKS).repartition(CHECK_TASKS).write.parquet(folder)
    if (found := spark.read.schema("id bigint").parquet(folder).count()) != CHECK_TASKS:
        raise LakeNotShared(
            f"{CHECK_TASKS - found} of {CHECK_TASKS} files that workers wrote into the lake are not here"
        )


class LakeNotShared(Exception):  # noqa: N818 - names a state
    """Workers write to another place than the driver reads."""


def print_time(name: str, started: float) -> None:
    """Write a line of progress: the name, and the seconds since ``started``."""
    sys.stdout.write(f"{PROGRESS}{name} {time.monotonic() - started:.1f} s\n")
    sys.stdout.flush()


def main() -> None:
    """Run the plan that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lake", required=True)
    parser.add_argument("--plan", required=True)
    arguments = parser.parse_args()
    plan = Plan.from_json(Path(arguments.plan).read_text(encoding="utf-8"))
    spark = make_session("push reports")
    try:
        check_lake(spark, arguments.lake, plan)
        Nightly(spark, arguments.lake, plan).run()
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
