"""Token churn: the flows of device tokens, and their stocks at the start and the end of a day.

The churn rate may exceed 1 where most tokens came and went on the same day.
Reconciliation: flows are counted from the day's events, both stocks over the whole history (`active_tokens`). So
start + in - out = end is a real check, and ``unexplained`` is the difference.
Late data: events are stamped when they happen and never change, so a day is final once it is closed. Events committed
late (a transaction open over the close of the day) change it with the next export.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_reports.jobs import labels, tables
from spark_reports.jobs.tables import PLACE, TOKEN_CHURN, Kind

KEY = ["day", *PLACE]
LOST = TOKEN_CHURN.of_kind(Kind.FLOW_OUT)
IN, OUT = TOKEN_CHURN.of_kind(Kind.FLOW_IN, Kind.MOVE_IN), TOKEN_CHURN.of_kind(Kind.FLOW_OUT, Kind.MOVE_OUT)
FLOWS = TOKEN_CHURN.of_kind(*tables.FLOWS)
# The flow of an event of a kind that this version does not know. It is not counted, so that its effect appears as
# ``unexplained``.
UNKNOWN = "unknown"


def transform(events: DataFrame, active: DataFrame) -> DataFrame:
    """Return the stocks, flows and churn rate of each day, platform, app topic and bridge."""
    flows, stocks = count_flows(events), count_active(active)
    joined = stocks.join(flows, on=KEY, how="full").na.fill(0)
    start, end = F.col("active_at_start"), F.col("active_at_end")
    return joined.withColumns(
        {
            "unexplained": start + sum_of(IN) - sum_of(OUT) - end,
            "churn_rate": F.when(start > 0, sum_of(LOST) / start),
            "net_growth": end - start,
        }
    )


def sum_of(names: Sequence[str]) -> Column:
    return sum((F.col(name) for name in names[1:]), start=F.col(names[0]))


def count_flows(events: DataFrame) -> DataFrame:
    moves = events.select("day", "bridge", F.explode(flows_of_event()).alias("move"))
    counts = [F.count_if(F.col("move.flow") == name).alias(name) for name in FLOWS]
    return moves.groupBy("day", "move.platform", "move.app_topic", "bridge").agg(*counts)


def flows_of_event() -> Column:
    """Return an array of (platform, app topic, flow): none, one, or two for a move from one place to another."""
    was, is_ = F.col("was_active"), F.col("is_active")
    has_moved = was & is_ & is_elsewhere()
    stayed = (
        F.when(F.col("kind") == "token_changed", "token_changed")
        .when(F.col("kind").isin(*labels.STAYING), "refreshed")
        .otherwise(UNKNOWN)
    )
    gone = (
        F.when(F.col("kind") == "unregistered", "unregistered")
        .when(F.col("kind") == "expired", "expired")
        .when(F.col("kind") == "token_died", "died")
        .otherwise(UNKNOWN)
    )
    return (
        F.when(has_moved, F.array(_before("moved_out"), _after("moved_in")))
        .when(was & is_, F.array(_after(stayed)))
        .when(was, F.array(_before(gone)))
        .when(is_, F.array(_after(F.when(F.col("is_first"), "new").otherwise("returned"))))
        .otherwise(F.array().cast("array<struct<platform:string,app_topic:string,flow:string>>"))
    )


def is_elsewhere() -> Column:
    return (F.col("platform") != F.col("previous_platform")) | (F.col("app_topic") != F.col("previous_app_topic"))


def _before(flow: str | Column) -> Column:
    return _move(F.col("previous_platform"), F.col("previous_app_topic"), flow)


def _after(flow: str | Column) -> Column:
    return _move(F.col("platform"), F.col("app_topic"), flow)


def _move(platform: Column, app_topic: Column, flow: str | Column) -> Column:
    flow = F.lit(flow) if isinstance(flow, str) else flow
    return F.struct(platform.alias("platform"), app_topic.alias("app_topic"), flow.alias("flow"))


def count_active(active: DataFrame) -> DataFrame:
    return active.groupBy(*KEY).agg(F.sum("at_start").alias("active_at_start"), F.sum("at_end").alias("active_at_end"))
