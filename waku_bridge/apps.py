from django.apps import AppConfig


class WakuBridgeConfig(AppConfig):
    name = "waku_bridge"
    verbose_name = "Waku"

    def ready(self) -> None:
        from waku_bridge import bridge  # noqa: PLC0415 - possible once apps are loaded

        bridge.register()
