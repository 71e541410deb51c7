"""HTTP to peers: connections, failover between equal servers, and the results of their config checks.

See docs/architecture.md.
"""
