"""Benchmarks of the whole server as users start it: full, idle, growing, far from its database, and after a month."""
