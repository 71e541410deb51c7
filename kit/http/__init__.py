"""HTTP to peers: connections, and failover between equal servers.

See docs/architecture.md.
"""
