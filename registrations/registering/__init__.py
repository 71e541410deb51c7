"""Registering: what is accepted and stored, how many a key and the server may have, and for whom a pair is known.

See docs/limits.md.
"""
