"""The parts of the console that combine all apps: dashboard, menu, search, timelines, accounts and alerts.

See docs/console.md.
"""
