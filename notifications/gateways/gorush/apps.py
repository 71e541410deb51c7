from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate

from notifications.gateways import registry
from notifications.gateways.interface import Gateway
from registrations import token_types
from registrations.messages import TokenType
from registrations.token_types import TokenKind


class GorushConfig(AppConfig):
    name = "notifications.gateways.gorush"
    label = "gorush"

    def ready(self) -> None:
        registry.register("gorush", _open)
        token_types.register(
            TokenKind(TokenType.APN, "APN", "ios", has_topic=True, devices="iPhone"),
            TokenKind(TokenType.FIREBASE, "Firebase", "android", devices="Android"),
        )
        post_migrate.connect(_load_error_rules, sender=self, dispatch_uid="error_rules")


def _open() -> Gateway:
    from notifications.gateways.gorush.sending.client import open_gateway  # noqa: PLC0415 - only processes that send need it

    return open_gateway()


def _load_error_rules(*, plan: Any = None, apps: Any = None, **_migrated: Any) -> None:
    """Load the rules after every migration, so that an upgrade brings its new ones.

    `flush` sends this signal too, without a plan.
    """
    if plan is None or any(is_backwards for _, is_backwards in plan):
        return
    from notifications.gateways.gorush.rules.table import load_seed  # noqa: PLC0415 - importable only once apps are loaded

    load_seed(apps.get_model("notifications", "GatewayErrorRule"))
