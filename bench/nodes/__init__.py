"""Benchmarks of reading from nodes and stores, and of the load generator."""
