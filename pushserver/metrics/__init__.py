"""The metrics of all apps in the form that Prometheus collects, and the page that documents them.

See docs/metrics.md.
"""
