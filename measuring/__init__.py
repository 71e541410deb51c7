"""How we measure. What is measured each app names in its `metrics.py`.

Every process counts in files of its own (prometheus_client's multiprocess mode), so counting needs no lock and no peer
that could be away; whoever is asked adds the files up. Knows none of the apps.
"""
