"""Benchmarks of the nightly reports and of their export."""
