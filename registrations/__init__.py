"""Registrations: who can be notified, where, and by whom. See docs/architecture.md."""
