"""Benchmarks of one request, step by step, in one process."""
