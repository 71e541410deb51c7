from django.apps import AppConfig

from kit import operations
from notifications.gateways import registry
from registrations import token_types
from registrations.token_types import TokenKind
from tests.extending.web_push.gateway import NAME, TOKEN_TYPE, WebPushGateway


class WebPushConfig(AppConfig):
    name = "tests.extending.web_push"

    def ready(self) -> None:
        registry.register(NAME, WebPushGateway)
        operations.register(NAME, "tests.extending.web_push.operations.WebPushOperations")
        token_types.register(TokenKind(TOKEN_TYPE, "Browser", "web", devices="Browser"))
