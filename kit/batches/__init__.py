"""Batches: a worker processes one after another, and a journal says what it has in flight. See docs/architecture.md."""
