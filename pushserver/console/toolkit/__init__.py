"""Building blocks of the admin pages of all apps.

Rule: an admin page lists its fields one by one, and shows no token, key, payload, or digest of a token.

See docs/console.md.
"""
