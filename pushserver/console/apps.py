from django.contrib.admin.apps import AdminConfig


class ConsoleConfig(AdminConfig):
    """Django's admin with our own site in it."""

    default = False
    default_site = "pushserver.console.frame.site.ConsoleSite"

    def ready(self) -> None:
        super().ready()
        from pushserver.console.accounts import logins  # noqa: F401, PLC0415 - connects itself, possible once apps are loaded
        from pushserver.console.labels import name_tables  # noqa: PLC0415 - as above

        name_tables()
