"""Keys that encrypt fields of the database, and their change. See docs/backup.md."""
