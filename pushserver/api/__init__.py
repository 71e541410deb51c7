"""The REST API: what monitoring and support tools may know, and registering devices of XMPP.

It never tells a token, key or payload; only who registers a device is told what its app is given.
"""
