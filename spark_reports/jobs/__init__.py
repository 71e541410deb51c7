"""Nightly reports in pure PySpark. Each job reads, transforms and writes; only ``transform`` functions hold logic.

See docs/reports.md.
"""
