"""How metrics are counted. What is counted each app names in its `metrics.py`.

Every process counts in files of its own (prometheus_client's multiprocess mode), so that counting needs no lock and no
peer that could be away. The process that is asked adds the files up. This package knows none of the apps.

See docs/monitoring/README.md.
"""
