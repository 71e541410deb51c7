"""Upkeep of stored rows: expiry and removal over time, and rotation of the field encryption keys.

See docs/backup.md.
"""
