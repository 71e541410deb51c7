"""Django's backend for PostgreSQL with connections that time out. `settings.DATABASES` names this package."""
