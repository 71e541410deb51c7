"""Devices: registration by the commands of apps, lookup, and removal. See docs/xmpp.md."""
