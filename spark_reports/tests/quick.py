"""Spark configuration for tiny days, which need neither optimised compilation nor 200 partitions."""

from pathlib import Path

# Compile quickly and not well, collect garbage in one thread, and do not verify Spark's JARs. A transform then takes
# a seventh of the time.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
CONF = f"""
spark.driver.extraJavaOptions {QUICK_JAVA}
spark.executor.extraJavaOptions {QUICK_JAVA}
spark.executor.memory 512m
spark.sql.codegen.wholeStage false
spark.sql.codegen.factoryMode NO_CODEGEN
spark.sql.shuffle.partitions 4
"""


def write_quick_conf(folder: Path) -> Path:
    """Write a configuration for spark-submit, and return the folder: the value of SPARK_CONF_DIR."""
    folder.mkdir()
    (folder / "spark-defaults.conf").write_text(CONF)
    return folder
