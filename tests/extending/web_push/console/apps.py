from django.apps import AppConfig

from pushserver.console import parts as operations


class WebPushConsoleConfig(AppConfig):
    name = "tests.extending.web_push.console"
    label = "web_push_console"

    def ready(self) -> None:
        operations.register("web_push", "tests.extending.web_push.console.part.WebPushOperations")
