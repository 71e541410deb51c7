from django.contrib.admin.apps import AdminConfig


class SiteConfig(AdminConfig):
    """Django's admin with our own site in it."""

    default_site = "pushserver.console.pages.site.ConsoleSite"

    def ready(self) -> None:
        super().ready()
        from pushserver.console.pages import logins  # noqa: F401, PLC0415 - connects itself, possible once apps are loaded
        from pushserver.console.pages.labels import name_tables  # noqa: PLC0415 - as above

        name_tables()
