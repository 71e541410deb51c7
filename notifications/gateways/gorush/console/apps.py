from django.apps import AppConfig

from kit import operations


class GorushConsoleConfig(AppConfig):
    name = "notifications.gateways.gorush.console"
    label = "gorush_console"

    def ready(self) -> None:
        operations.register("gorush", "notifications.gateways.gorush.console.part.GorushOperations")
