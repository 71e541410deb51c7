"""HTTP to peers: connections, which of several equal servers to ask first, and what was found out about them.

See docs/architecture.md.
"""
