from django.apps import AppConfig

from kit import operations


class XmppBridgeConfig(AppConfig):
    name = "xmpp_bridge"
    verbose_name = "XMPP"

    def ready(self) -> None:
        operations.register("xmpp", "xmpp_bridge.operations.XmppOperations")
