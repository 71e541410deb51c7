from django.apps import AppConfig


class KitAdminConfig(AppConfig):
    """An app without models. It exists for its template tags and static files."""

    name = "pushserver.console.toolkit"
    label = "kit_admin"
    verbose_name = "Building blocks of admin pages"
