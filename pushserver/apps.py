from django.apps import AppConfig, apps
from django.contrib.admin import apps as admin_apps
from django.db.models.signals import post_migrate


class PushserverConfig(AppConfig):
    name = "pushserver"
    verbose_name = "Push server"
    default = True

    def ready(self) -> None:
        from pushserver import checks  # noqa: F401, PLC0415 - registers the system checks, possible once apps are loaded
        from pushserver.console.roles import seed_roles  # noqa: PLC0415 - as above

        # Permissions are rows, made app by app after each migration: with the last app they are all there.
        *_, last = apps.get_app_configs()
        post_migrate.connect(seed_roles, sender=last, dispatch_uid="roles")


class ConsoleConfig(admin_apps.AdminConfig):
    """Django's admin with our own site in it."""

    default = False
    default_site = "pushserver.console.site.ConsoleSite"
