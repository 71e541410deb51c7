"""The base of all apps: batches, database, HTTP, metrics, tasks and admin pages. This package imports none of the apps.

See docs/architecture.md.
"""
