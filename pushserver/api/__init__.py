"""The REST API: what monitoring and support tools may know, and the endpoints of bridges.

It never tells a token, key or payload; only who registers a device is told what its app is given.

See docs/api.md.
"""
