from django.apps import AppConfig

from notifications import gateways
from registrations import messages
from registrations.messages import TokenKind
from tests.extending.web_push.gateway import NAME, TOKEN_TYPE, WebPushGateway


class WebPushConfig(AppConfig):
    name = "tests.extending.web_push"

    def ready(self) -> None:
        gateways.register(NAME, WebPushGateway)
        messages.register_token_kinds(TokenKind(TOKEN_TYPE, "Browser", "web", devices="Browser"))
