"""Batches: workers process one batch after another, and journal the items in progress. See docs/architecture.md."""
