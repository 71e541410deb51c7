"""Start of a process: checks before the first message, the version, and the system checks.

See docs/installation/README.md.
"""
