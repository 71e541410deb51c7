"""What every app stands on: database, HTTP, metrics, tasks and admin pages. This package knows none of the apps.

See docs/architecture.md.
"""
