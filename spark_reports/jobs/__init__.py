"""Nightly reports in pure PySpark. Each job reads, transforms and writes. Only ``transform`` functions hold logic.

See docs/reports.md.
"""
