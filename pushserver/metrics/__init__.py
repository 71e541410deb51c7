"""Metrics of all apps in the format of Prometheus, and the page that documents them.

See docs/metrics.md.
"""
