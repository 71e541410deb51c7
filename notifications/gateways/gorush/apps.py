from django.apps import AppConfig

from notifications.gateways import registry
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


def _open() -> registry.Gateway:
    from notifications.gateways.gorush.client import open_gateway  # noqa: PLC0415 - only processes that send need it

    return open_gateway()
