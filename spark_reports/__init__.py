"""Nightly reports with Spark: the jobs are pure PySpark, this app only keeps and shows their results."""
