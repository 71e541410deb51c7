"""The inbox: envelopes that came in and wait, the order in which they are taken, and what follows from each.

See docs/reading.md and docs/architecture.md.
"""
