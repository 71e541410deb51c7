"""The bridge of Waku: envelopes are read from nodes and decided about, and replies are published.

See docs/reading.md.
"""
