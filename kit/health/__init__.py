"""Health: indicators, what processes save about themselves for others, and logs that report changes only.

See docs/console.md.
"""
