from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate

from notifications import gateways
from registrations import messages
from registrations.messages import TokenKind, TokenType


class GorushConfig(AppConfig):
    name = "notifications.gateways.gorush"
    label = "gorush"

    def ready(self) -> None:
        post_migrate.connect(_load_error_rules, sender=self, dispatch_uid="error_rules")
        gateways.register("gorush", _open)
        messages.register_token_kinds(
            TokenKind(TokenType.APN, "APN", "ios", has_topic=True, devices="iPhone"),
            TokenKind(TokenType.FIREBASE, "Firebase", "android", devices="Android"),
        )


def _load_error_rules(*, plan: Any = None, apps: Any = None, **_migrated: Any) -> None:
    """Load the rules after every migration, so that an upgrade brings its new ones.

    `flush` sends this signal too, without a plan.
    """
    if plan is None or any(is_backwards for _, is_backwards in plan):
        return
    from notifications.gateways.gorush.models import load_shipped  # noqa: PLC0415 - importable only once apps are loaded

    load_shipped(apps.get_model("notifications", "GatewayErrorRule"))


def _open() -> gateways.Gateway:
    from notifications.gateways.gorush.client import open_gateway  # noqa: PLC0415 - only processes that send need it

    return open_gateway()
