"""Nights: owed days, requests of operators, the status of the reports, and summaries. See docs/reports.md."""
