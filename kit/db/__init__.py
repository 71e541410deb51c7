"""Column types, bulk statements and operations of migrations that Django or PostgreSQL lack. See docs/extending.md."""
