"""Removing what is old, what nobody keeps up, and what a user wants erased. See docs/settings.md."""
