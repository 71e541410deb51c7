"""Nights: which days are owed, what operators asked for, how it stands, and the summary. See docs/reports.md."""
