"""Expiry of unused rows, with a guard against mass expiry by a wrong clock or after weeks without pushes.

See docs/limits.md.
"""
