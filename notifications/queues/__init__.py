"""Queues: waiting notifications, the halts that cover them, admission, and the claims of workers. See
docs/delivery.md.
"""
