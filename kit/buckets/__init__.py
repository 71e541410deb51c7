"""Token buckets: the arithmetic and the memory of one process in `bucket`, those of all processes in `shared`.

See docs/limits.md.
"""
