"""Database tools that Django and PostgreSQL lack: column types, bulk statements, migrations. See docs/extending.md."""
