"""History of the server: counts of each minute and hour, and the retention of incidents, visits and logins.

See docs/console.md.
"""
