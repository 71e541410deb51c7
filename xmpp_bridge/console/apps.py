from django.apps import AppConfig

from kit import operations


class XmppConsoleConfig(AppConfig):
    name = "xmpp_bridge.console"
    label = "xmpp_console"

    def ready(self) -> None:
        operations.register("xmpp", "xmpp_bridge.console.part.XmppOperations")
