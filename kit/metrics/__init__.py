"""Counting and exposing of metrics. Each app defines its metrics in its own `metrics.py`.

Every process counts in files of its own (prometheus_client's multiprocess mode), so counting needs no lock and no other
server. The process that answers a scrape adds up the files. This package imports none of the apps.

See docs/monitoring/README.md.
"""
