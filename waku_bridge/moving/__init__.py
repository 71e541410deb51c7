"""Import from a push server of status-go, so that no phone has to register again: docs/migration.md.

`sqlcipher` opens its database, and `registrations` reads and stores the rows.
"""
