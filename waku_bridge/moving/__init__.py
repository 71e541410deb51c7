"""Moving over from a push server of status-go, so that no phone has to register again: docs/migration.md.

`sqlcipher` opens its database, `registrations` reads and stores what is in it.
"""
