"""Encryption of database fields, its keys, and the keys of query topics. See docs/backup.md."""
