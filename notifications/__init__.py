"""Notifications: requests are accepted, wait in queues, are delivered through a gateway, and answered.

See docs/delivery.md.
"""
