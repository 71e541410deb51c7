"""The REST API: status and records for tools of monitoring and support, and the endpoints of bridges.

No answer has a token, key or payload. A call that registers a device is answered with the address of its route.

See docs/api.md.
"""
