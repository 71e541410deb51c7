"""The Spark session of a run, with the options that results depend on. Master, memory and logging: see spark-submit."""

from pyspark.sql import SparkSession

OPTIONS = {
    "spark.sql.session.timeZone": "UTC",  # days and hours are UTC everywhere
    "spark.sql.ansi.enabled": "true",  # an overflow is an error and not a null
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",  # schemas are declared
    "spark.sql.parquet.enableVectorizedReader": "true",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


# Options for frames of some thousand rows, which remain once the facts are counted. Compiling a plan, or adapting it
# while it runs, takes longer than running it.
SMALL = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}


def expect_small_frames(session: SparkSession) -> None:
    """Set the options for frames of some thousand rows."""
    for option, value in SMALL.items():
        session.conf.set(option, value)


def make_session(name: str) -> SparkSession:
    """Return the Spark session with the options on which results depend."""
    builder = SparkSession.builder.appName(name)
    for option, value in OPTIONS.items():
        builder = builder.config(option, value)
    return builder.getOrCreate()
