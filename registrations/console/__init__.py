"""What the admin pages of all apps are made of. It stands in the lowest app, because every other one may import that.

Rule: an admin page lists its fields one by one, and no token, key, payload, or digest of a token is ever among them.
"""
