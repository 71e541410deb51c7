"""Batches: workers process one batch after another. See docs/architecture.md."""
