from typing import Any

from django.apps import AppConfig, apps
from django.db.models.signals import post_migrate


class ConsoleConfig(AppConfig):
    """What of the console all processes have: the tables of the canaries, and the shipped error rules."""

    name = "pushserver.console"

    def ready(self) -> None:
        # Django sends the signal for apps with models.
        post_migrate.connect(_load_error_rules, sender=apps.get_app_config("gorush"), dispatch_uid="error_rules")


def _load_error_rules(*, plan: Any = None, apps: Any = None, **_migrated: Any) -> None:
    """Load the rules after every migration, so that an upgrade brings its new ones.

    `flush` sends this signal too, without a plan.
    """
    if plan is None or any(is_backwards for _, is_backwards in plan):
        return
    from pushserver.console.gorush.loading import load_seed  # noqa: PLC0415 - importable only once apps are loaded

    load_seed(apps.get_model("notifications", "GatewayErrorRule"))
