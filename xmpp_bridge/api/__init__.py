"""Endpoints of XMPP in the API: registering devices, and the round trips of the canary. See docs/api.md."""
