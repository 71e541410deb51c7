"""Notifications: this app accepts requests, queues their notifications, delivers them through gateways, and answers.

See docs/delivery.md.
"""
