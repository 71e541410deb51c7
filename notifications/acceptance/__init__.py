"""Acceptance of requests: decide about each notification, store it, and claim the pushes that may be sent at once.

See docs/delivery.md.
"""
