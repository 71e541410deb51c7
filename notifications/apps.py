from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class NotificationsConfig(AppConfig):
    name = "notifications"
    verbose_name = "Notifications"

    def ready(self) -> None:
        post_migrate.connect(_load_error_rules, sender=self, dispatch_uid="error_rules")


def _load_error_rules(*, plan: Any = None, apps: Any = None, **_migrated: Any) -> None:
    """With every deployment, so that an upgrade brings its new rules. `flush` sends this signal too, without a plan."""
    if plan is None or any(is_backwards for _, is_backwards in plan):
        return
    from notifications.gateways.gorush.rules_table import load_seed  # noqa: PLC0415 - possible once apps are loaded

    load_seed(apps.get_model("notifications", "GatewayErrorRule"))
