from django.apps import AppConfig


class XmppBridgeConfig(AppConfig):
    name = "xmpp_bridge"
    verbose_name = "XMPP"
