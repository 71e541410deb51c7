"""The program that spark-submit runs: it computes every report of the days of a plan.

    spark-submit --py-files jobs.zip entry.py --lake URL --folder PATH

It reads the facts below the lake, and on the driver's machine the plan and the earlier reports in the folder of the
run. It writes the results there, too. It uses no database, and writes nothing into the lake.
"""

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_reports.jobs import sources, tables
from spark_reports.jobs.plan import EARLIER, PLAN, PROGRESS, RESULTS, Plan
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
from spark_reports.jobs.sources import schema_of
from spark_reports.jobs.tables import Table

AT_ONCE = 2
# Options of Spark on which results depend. Master, memory and logging: see spark-submit.
OPTIONS = {
    "spark.sql.session.timeZone": "UTC",  # days and hours are UTC everywhere
    "spark.sql.ansi.enabled": "true",  # an overflow is an error and not a null
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",  # schemas are declared
    "spark.sql.parquet.enableVectorizedReader": "true",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    # Otherwise PySpark asks Java twice, and tries to import IPython, for every expression on a column.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.lightweightPlanChangeValidation": "false",  # after each rule of the optimizer
}
# Options for frames of some thousand rows, as a small server has them, and every server once its facts are counted.
# Compiling a plan, or adapting it while it runs, takes longer than running it.
FEW_ROWS = 200_000
SMALL = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}


class Nightly:
    """One run: its facts, the earlier reports, and the order in which reports are computed from each other."""

    def __init__(self, spark: SparkSession, lake: str, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.plan = Plan.from_json((folder / PLAN).read_text(encoding="utf-8"))
        days = dict.fromkeys((t.name for t in tables.EVENT_TABLES), self.plan.days)
        days[tables.UNKNOWN_ERRORS.name] = self.plan.snapshots
        self.raw = {t.name: sources.read(spark, lake, t, days[t.name]) for t in tables.EVENT_TABLES}
        self.facts = {
            name: f.where(sources.is_within_day()) if "at" in f.columns else f for name, f in self.raw.items()
        }
        (folder / RESULTS).mkdir()

    def earlier(self, report: Table) -> DataFrame:
        """Return the published rows of a report for the days before the run."""
        return self._frame(pq.read_table(self.folder / EARLIER / f"{report.name}.parquet"), report)

    def _frame(self, rows: pa.Table, report: Table) -> DataFrame:
        return self.spark.createDataFrame(rows, schema_of(report))

    def run(self) -> None:
        """Count the facts, then compute and write all reports from the counts, which are small."""
        if sum(rows for days in self.plan.rows.values() for rows in days.values()) < FEW_ROWS:
            self._expect_small_frames()
        self._count()
        self._expect_small_frames()
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

    def _expect_small_frames(self) -> None:
        for option, value in SMALL.items():
            self.spark.conf.set(option, value)

    def _load(self) -> None:
        self.write(load_profile.transform(self.facts["actors"]), tables.LOAD_PROFILE)
        self.write(load_profile.heaviest(self.facts["actors"]), tables.HEAVY_ACTORS)
        self.write(latency.transform(self.durations), tables.LATENCY)

    def _count(self) -> None:
        """Read the facts, and keep the counts, which are small."""
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
        rows = counts.toArrow()
        print_time(f"counts_of_{name}", started)
        return self.spark.createDataFrame(rows)

    def _error_rates(self) -> tuple[DataFrame, DataFrame]:
        before = self.earlier(tables.ERROR_RATES)
        rates = self.written(error_rates.transform(self.outcomes, before), tables.ERROR_RATES)
        unknown, known = self.facts["unknown_errors"], self.earlier(tables.FAILURE_SIGNATURES)
        known_days = self.plan.found_days(tables.FAILURE_SIGNATURES.name)
        found = failure_signatures.transform(rates, before, unknown, known, known_days)
        self.write(found, tables.FAILURE_SIGNATURES)
        return rates, before

    def _churn(self) -> tuple[DataFrame, DataFrame]:
        events, active = self.facts["registration_events"], self.facts["active_tokens"]
        churn = self.written(token_churn.transform(events, active), tables.TOKEN_CHURN)
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

    def written(self, frame: DataFrame, report: Table) -> DataFrame:
        """Write one report, and return its rows as a frame without their computation."""
        return self._frame(self.write(frame, report), report)

    def write(self, frame: DataFrame, report: Table) -> pa.Table:
        """Write one report, report the time that it took, and return its rows.

        Raises AnalysisException when the frame lacks a column of the report.
        """
        started = time.monotonic()
        rows = frame.select([F.col(field.name).cast(field.dataType) for field in schema_of(report)]).toArrow()
        pq.write_table(rows, self.folder / RESULTS / f"{report.name}.parquet")
        print_time(report.name, started)
        return rows


def print_time(name: str, started: float) -> None:
    """Write a line of progress: the name, and the seconds since ``started``."""
    sys.stdout.write(f"{PROGRESS}{name} {time.monotonic() - started:.1f} s\n")
    sys.stdout.flush()


def main() -> None:
    """Run the plan in the folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lake", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    builder = SparkSession.builder.appName("push reports")
    for option, value in OPTIONS.items():
        builder = builder.config(option, value)
    spark = builder.getOrCreate()
    try:
        Nightly(spark, arguments.lake, arguments.folder).run()
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
