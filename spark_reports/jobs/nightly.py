"""What spark-submit runs: every report of the days of a plan.

    spark-submit --py-files jobs.zip nightly.py --lake URL --plan PATH

It reads what the plan names below the lake and writes to the plan's output folder. It knows no database.
"""

import argparse
import sys
import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_reports.jobs import (
    anomalies,
    data_quality,
    error_rates,
    failure_signatures,
    latency,
    load_profile,
    sinks,
    sources,
    tables,
    token_churn,
    token_lifetime,
)
from spark_reports.jobs.plan import Plan
from spark_reports.jobs.session import make_session
from spark_reports.jobs.tables import Table

# The server follows these lines.
PROGRESS = "report"


class Nightly:
    """One run: its facts, its earlier reports and the frames that several reports need."""

    def __init__(self, spark: SparkSession, lake: str, plan: Plan) -> None:
        self.spark, self.lake, self.plan = spark, lake, plan
        self.raw = {table.name: self._read(table) for table in tables.EVENT_TABLES}
        self.facts = {name: sources.plausible(f) if "at" in f.columns else f for name, f in self.raw.items()}

    def _read(self, table: Table) -> DataFrame:
        facts = sources.read_facts(self.spark, self.lake, self.plan, table)
        return facts if table is tables.UNKNOWN_ERRORS else facts.where(F.col("day").isin(self.plan.dates))

    def earlier(self, report: Table) -> DataFrame:
        return sources.read_earlier(self.spark, self.lake, self.plan, report)

    def run(self) -> None:
        """Small results that others are computed from are kept in memory."""
        self._rates_and_signatures()
        facts, write = self.facts, self.write
        arguments = [facts[name] for name in ("envelopes", "notifications", "attempts", "replies")]
        write(latency.transform(*arguments), tables.LATENCY)
        actors = load_profile.by_actor(facts["notifications"]).persist()
        write(load_profile.transform(actors), tables.LOAD_PROFILE)
        write(load_profile.heaviest(actors), tables.HEAVY_ACTORS)
        actors.unpersist()

    def _rates_and_signatures(self) -> None:
        facts, earlier = self.facts, self.earlier
        arguments = [facts[name] for name in ("envelopes", "notifications", "attempts", "replies")]
        before = earlier(tables.ERROR_RATES)
        outcomes = error_rates.count_outcomes(*arguments).persist()
        rates = error_rates.transform(outcomes, before).persist()
        self.write(rates, tables.ERROR_RATES)
        signatures = failure_signatures.transform(
            rates, before, facts["unknown_errors"], earlier(tables.FAILURE_SIGNATURES)
        )
        self.write(signatures, tables.FAILURE_SIGNATURES)
        self._churn(rates, before)
        rates.unpersist()
        outcomes.unpersist()

    def _churn(self, rates: DataFrame, rates_before: DataFrame) -> None:
        events, active = self.facts["registration_events"], self.facts["active_tokens"]
        before = self.earlier(tables.TOKEN_CHURN)
        churn = token_churn.transform(events, active).persist()
        self.write(churn, tables.TOKEN_CHURN)
        self.write(anomalies.transform(rates, rates_before, churn, before), tables.ANOMALIES)
        spells = token_lifetime.spells(events, active).persist()
        self.write(spells, tables.TOKEN_SPELLS)
        all_spells = spells.unionByName(self.earlier(tables.TOKEN_SPELLS))
        self.write(token_lifetime.transform(all_spells, self.plan.dates), tables.TOKEN_LIFETIME)
        expected = data_quality.expected_rows(self.spark, self.plan.rows)
        counted = {name: self.raw[name] for name in self.plan.rows}
        quality = data_quality.transform(expected, counted, churn, before)
        incomplete = data_quality.incomplete(self.spark, self.plan.incomplete_days)
        self.write(quality.unionByName(incomplete), tables.DATA_QUALITY)

    def write(self, frame: DataFrame, report: Table) -> None:
        started = time.monotonic()
        sinks.write(frame, report, self.lake, self.plan)
        sys.stdout.write(f"{PROGRESS} {report.name} {time.monotonic() - started:.1f} s\n")
        sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lake", required=True)
    parser.add_argument("--plan", required=True)
    arguments = parser.parse_args()
    spark = make_session("push reports")
    try:
        Nightly(spark, arguments.lake, sources.read_plan(spark, arguments.lake, arguments.plan)).run()
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
