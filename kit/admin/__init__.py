"""Parts that the admin pages of all apps are made of.

Rule: an admin page lists its fields one by one, and no token, key, payload, or digest of a token is ever among them.

See docs/console.md.
"""
