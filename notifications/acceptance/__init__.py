"""Accepting requests: decide about each notification, store it, and claim what may be sent at once.

See docs/delivery.md.
"""
