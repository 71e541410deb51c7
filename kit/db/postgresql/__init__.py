"""Django's backend for PostgreSQL, with connections that do not wait for ever. Named in `settings.DATABASES`."""
