"""The whole server as users start it: full, quiet, growing, far from its database, and after a month."""
