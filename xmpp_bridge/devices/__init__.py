"""Devices: registering them by the commands of apps, looking them up, and removing them. See docs/xmpp.md."""
