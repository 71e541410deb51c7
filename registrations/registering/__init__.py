"""Registering: decisions about registrations, their storage, and quotas of a key and of the server.

See docs/limits.md.
"""
