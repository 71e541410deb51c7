from django.apps import AppConfig

from notifications import gateways
from registrations import messages
from registrations.messages import TokenKind, TokenType


class GorushConfig(AppConfig):
    name = "notifications.gateways.gorush"
    label = "gorush"

    def ready(self) -> None:
        gateways.register("gorush", _open)
        messages.register_token_kinds(
            TokenKind(TokenType.APN, "APN", "ios", has_topic=True, devices="iPhone"),
            TokenKind(TokenType.FIREBASE, "Firebase", "android", devices="Android"),
        )


def _open() -> gateways.Gateway:
    from notifications.gateways.gorush.client import open_gateway  # noqa: PLC0415 - only processes that send need it

    return open_gateway()
