"""What is kept of the past: counts of each minute, and how long incidents, visits and log-ins are.

See docs/console.md.
"""
