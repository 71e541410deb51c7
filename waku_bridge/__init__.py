"""The Waku bridge: it reads envelopes from nodes, has them processed, and publishes the replies.

See docs/reading.md.
"""
