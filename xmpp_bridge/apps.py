from django.apps import AppConfig


class XmppBridgeConfig(AppConfig):
    name = "xmpp_bridge"
    verbose_name = "XMPP"

    def ready(self) -> None:
        from notifications import tasks  # noqa: PLC0415 - possible once apps are loaded

        tasks.CANARY_PSEUDONYMS.append("SELECT pseudonym FROM xmpp_bridge_canaryrun WHERE pseudonym IS NOT NULL")
        tasks.CANARY_INSTALLATIONS.append("SELECT device::text FROM xmpp_bridge_canaryrun WHERE device IS NOT NULL")
