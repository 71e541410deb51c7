"""Benchmarks of console and API with a full database."""
