from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import functions as F

from spark_reports.jobs.reports.statistics import median_of, scale, wilson_high, wilson_low, with_usual
from spark_reports.tests.frames import DAY


@pytest.mark.parametrize(
    ("events", "total", "low", "high"),
    [
        (0, 10, 0.0, 0.2775328),
        (10, 10, 0.7224672, 1.0),
        (5, 10, 0.2365931, 0.7634069),
        (1, 1000, 0.0001765, 0.0056425),
    ],
)
def test_the_wilson_interval_is_that_of_the_textbook(
    spark: Any, events: int, total: int, low: float, high: float
) -> None:
    frame = spark.createDataFrame([(events, total)], "events bigint, total bigint")
    [row] = frame.select(
        wilson_low(F.col("events"), F.col("total")), wilson_high(F.col("events"), F.col("total"))
    ).collect()

    assert tuple(row) == pytest.approx((low, high), abs=1e-6)


@pytest.mark.parametrize(("values", "median"), [([], None), ([3.0], 3.0), ([4.0, 1.0], 2.5), ([9.0, 1.0, 2.0], 2.0)])
def test_the_median_of_an_array(spark: Any, values: list[float], median: float | None) -> None:
    frame = spark.createDataFrame([(values,)], "numbers array<double>")

    assert frame.select(median_of(F.col("numbers"))).first()[0] == median


def test_the_usual_value_is_that_of_the_seven_days_before(spark: Any) -> None:
    rates = {-8: 0.9, -7: 0.1, -3: 0.2, -1: 0.4, 0: 0.8, 1: 0.9}
    history = [(DAY + timedelta(days=n), "a", rate) for n, rate in rates.items()]
    frame = spark.createDataFrame(history, "day date, key string, rate double")

    rows = with_usual(frame, frame, ["key"], "rate").select("day", "usual", "deviation").collect()
    known = {(row.day - DAY).days: (row.usual, row.deviation) for row in rows}

    assert known[0] == (0.2, pytest.approx(0.1))
    assert known[1] == (0.4, pytest.approx(0.2))
    assert known[-1] == (0.2, pytest.approx(0.1))
    assert known[-3] == (None, None)


def test_a_rate_that_was_always_zero_has_a_scale(spark: Any) -> None:
    frame = spark.createDataFrame([(0.0, 0.0, 100)], "usual double, deviation double, total bigint")
    [[value]] = frame.select(scale(F.col("usual"), F.col("deviation"), F.col("total"))).collect()

    assert value == pytest.approx((0.5 / 101 * (1 - 0.5 / 101) / 100) ** 0.5)
