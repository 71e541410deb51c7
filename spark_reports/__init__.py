"""Nightly reports with Spark.

The app exports facts into the lake, runs the jobs in Spark, and stores and shows their results. The jobs are pure
PySpark.

See docs/reports.md.
"""
