from django.apps import AppConfig

from kit import operations


class WakuConsoleConfig(AppConfig):
    name = "waku_bridge.console"
    label = "waku_console"

    def ready(self) -> None:
        operations.register("waku", "waku_bridge.console.part.WakuOperations")
