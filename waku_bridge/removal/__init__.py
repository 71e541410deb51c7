"""Removal of old rows, of registrations that ended, and of users who ask for it. See docs/settings.md."""
