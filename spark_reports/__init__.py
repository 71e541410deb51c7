"""Nightly reports with Spark.

The jobs are pure PySpark; this app exports their facts, and keeps and shows their results.

See docs/reports.md.
"""
