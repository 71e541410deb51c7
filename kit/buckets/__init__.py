"""Token buckets: the arithmetic in `bucket`, buckets of all processes in `shared`, the part of one process in `share`.

See docs/limits.md.
"""
