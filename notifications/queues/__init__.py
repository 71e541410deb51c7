"""Queues: what waits, what halts it, how much is admitted, and what is claimed to be sent. See docs/delivery.md."""
