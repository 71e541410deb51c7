"""Writer of reports: one Parquet file per report and day, into the folder of the run.

No reader opens these files until the server has checked all of them and published the days: see `spark_reports.lake`.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_reports.jobs.plan import Plan
from spark_reports.jobs.schemas import schema_of
from spark_reports.jobs.tables import Table


def write(frame: DataFrame, report: Table, lake: str, plan: Plan) -> DataFrame:
    """Write a report, and return a frame that reads its rows from the files.

    Later frames are computed from the files, without computing the report again. Raises AnalysisException when the
    frame lacks a column of the report.
    """
    schema = schema_of(report)
    path = f"{lake}/{plan.output}/{report.name}"
    columns = [F.col(field.name).cast(field.dataType) for field in schema]
    frame.select(columns).coalesce(1).write.mode("error").partitionBy("day").parquet(path)
    return frame.sparkSession.read.schema(schema).parquet(path).select(schema.fieldNames())
