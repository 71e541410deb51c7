"""One run of Spark: its process, what it needs, and how its results are loaded. See docs/reports.md."""
