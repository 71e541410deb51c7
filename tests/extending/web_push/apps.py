from django.apps import AppConfig

from notifications.gateways import registry
from registrations import token_types
from registrations.token_types import TokenKind
from tests.extending.web_push.gateway import NAME, TOKEN_TYPE, WebPushGateway


class WebPushConfig(AppConfig):
    name = "tests.extending.web_push"

    def ready(self) -> None:
        registry.register(NAME, WebPushGateway)
        token_types.register(TokenKind(TOKEN_TYPE, "Browser", "web", devices="Browser"))
