"""Writing: one Parquet file per report and day, into the run's own folder.

Nothing there is seen by anyone until the server has checked all of it and published the days: see `spark_reports.lake`.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_reports.jobs.plan import Plan
from spark_reports.jobs.schemas import schema_of
from spark_reports.jobs.tables import Table


def write(frame: DataFrame, report: Table, lake: str, plan: Plan) -> None:
    """Raises AnalysisException when the frame lacks a column of the report."""
    columns = [F.col(field.name).cast(field.dataType) for field in schema_of(report)]
    one_task = frame.select(columns).repartition(1)
    one_task.write.mode("error").partitionBy("day").parquet(f"{lake}/{plan.output}/{report.name}")
