"""Registrations: installations that can be notified, their addresses, and their grants. See docs/architecture.md."""
