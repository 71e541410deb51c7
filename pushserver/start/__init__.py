"""Start: what must fit together before the first message, the version, and the system checks.

See docs/installation/README.md.
"""
