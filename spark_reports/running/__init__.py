"""Runs: their steps, the process of Spark and its requirements, and the loading of results. See docs/reports.md."""
