"""Queues: waiting notifications, halts that cover them, admission, and workers' claims. See docs/delivery.md."""
