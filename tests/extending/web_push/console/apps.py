from django.apps import AppConfig

from pushserver.console import parts
from tests.extending.web_push.console.part import WEB_PUSH


class WebPushConsoleConfig(AppConfig):
    name = "tests.extending.web_push.console"
    label = "web_push_console"

    def ready(self) -> None:
        parts.PARTS.append(WEB_PUSH)  # the one line that a gateway adds to `pushserver/console/parts.py`
