"""Upkeep of what is stored: what ends or is removed with time, and new keys for encrypted fields.

See docs/backup.md.
"""
